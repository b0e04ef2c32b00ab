"""Experiments that no daemon imports: workloads of the DqnGPU thesis, contests of planners."""
