"""Decide which running jobs need attention, with pure functions of their live values and verdicts."""
