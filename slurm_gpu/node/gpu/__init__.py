"""Read GPUs through NVML, in a child process that calls the driver."""
