"""Read GPUs through NVML in a child process."""
