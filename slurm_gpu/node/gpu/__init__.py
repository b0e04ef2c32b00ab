"""GPUs as NVML shows them: what one look brings back, and the child process that calls the driver."""
