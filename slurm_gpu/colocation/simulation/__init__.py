"""A simulator of jobs that share GPUs."""
