"""The commands `job`, `jobs` and `diagnose`."""
