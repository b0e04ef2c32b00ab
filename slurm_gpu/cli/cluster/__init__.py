"""Implement the commands `nodes`, `top` and `web`, which show the current state of the cluster."""
