"""Explain from time series of GPUs and hosts why a distributed job is slow, by pure functions with numpy."""
