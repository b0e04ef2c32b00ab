"""The state of the cluster as each viewer may see it."""
