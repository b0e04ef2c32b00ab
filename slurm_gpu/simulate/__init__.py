"""Model a cluster and its queue by discrete events; equal input gives equal output.

`model.simulate` runs `jobs.Jobs` on a `cluster.ModelCluster`. docs/simulate.md lists what it models like
Slurm and what it omits.
"""
