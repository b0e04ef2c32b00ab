"""Find verdicts on running jobs, store them, and serve them."""
