"""Simulate a cluster and its queue by discrete events; equal input gives equal output.

`model.simulate` runs `jobs.Jobs` on a `cluster.ModelCluster`. docs/simulate.md lists which behaviour of Slurm
the model includes and which it omits.
"""
