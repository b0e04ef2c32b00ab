"""The one discrete-event model of a cluster and its queue: same input, same outcome, to the last event.

`model.simulate` runs `jobs.Jobs` on a `cluster.Cluster`. Policy replay, recommendations, placement and
co-location stand on it; what it does as Slurm does, and what not, is said in docs/simulate.md.
"""
