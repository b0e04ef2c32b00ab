"""Processes of jobs: owner and use, read from /proc and cgroups."""
