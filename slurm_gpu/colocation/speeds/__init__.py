"""Predict the speeds of applications that share a GPU from measured speeds."""
