"""Decide which running jobs need attention, by pure functions of their live values and verdicts."""
