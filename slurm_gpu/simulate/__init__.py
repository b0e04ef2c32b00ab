"""A discrete-event model of a cluster and its queue; equal input gives equal output.

`model.simulate` runs `jobs.Jobs` on a `cluster.ModelCluster`. Policy replay, recommendations, placement and
co-location use it. docs/simulate.md lists what it models like Slurm and what it omits.
"""
