"""The state of the cluster, reduced to the data that each viewer may see."""
