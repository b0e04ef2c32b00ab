"""Predict, from measured speeds, the speeds of applications that share a GPU."""
