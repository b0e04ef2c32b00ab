"""Experiments that no daemon imports: workloads, contests of planners, and what sharing costs."""
