"""Compute the cumulative record of each segment from samples of a device."""
