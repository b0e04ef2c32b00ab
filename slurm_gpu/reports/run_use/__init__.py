"""The use of GPUs, CPUs and memory by one run: pure functions of its records."""
