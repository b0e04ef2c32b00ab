"""Implement the commands `job`, `jobs` and `diagnose`."""
