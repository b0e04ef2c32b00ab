"""Processes of jobs: whose they are and what they use, read from /proc and cgroups."""
