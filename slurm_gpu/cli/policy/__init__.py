"""Implement the commands `policy`, `explain` and `quota`."""
