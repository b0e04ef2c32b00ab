"""Simulate a cluster and its queue as a series of events; the same input always gives the same output.

`model.simulate` runs `jobs.Jobs` on a `cluster.ModelCluster`. docs/simulate.md lists which behaviour of Slurm
the model includes and which it omits.
"""
