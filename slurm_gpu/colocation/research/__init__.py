"""Provide experiments that no daemon imports: workloads, comparisons of planners, and the cost of sharing."""
