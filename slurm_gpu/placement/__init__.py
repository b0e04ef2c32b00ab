"""Choose nodes for jobs so that GPUs stay whole for jobs that need many.

Pure functions of `state.Nodes`. docs/placement.md explains the scores and their sources.
"""
