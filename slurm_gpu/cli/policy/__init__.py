"""The commands `policy`, `explain` and `quota`."""
