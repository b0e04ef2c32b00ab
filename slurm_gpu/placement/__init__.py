"""Choose nodes for jobs so that whole GPUs and nodes remain for jobs that need many.

Pure functions of `state.Nodes`. docs/placement.md explains the scores and their sources.
"""
