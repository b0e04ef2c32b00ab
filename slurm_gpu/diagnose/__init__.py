"""Explain why a distributed job is slow, using pure numpy functions on time series of GPUs and hosts."""
