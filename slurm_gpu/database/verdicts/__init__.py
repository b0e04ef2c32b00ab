"""Verdicts on running jobs: the watch that finds them, their storage and their endpoint."""
