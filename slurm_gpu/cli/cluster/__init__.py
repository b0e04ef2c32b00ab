"""Commands on the cluster as it is now: `nodes`, `top`, `web`."""
