"""Choose nodes for jobs so that whole GPUs and nodes remain free for jobs that need many of them.

The functions are pure and operate on `state.Nodes`. docs/placement.md explains the scores and their sources.
"""
