"""Simulate jobs that share GPUs."""
