"""Verdicts of the watch over running jobs: stored, and served to readers."""
