"""Recommend other limits, by replaying recorded runs through the model of the queue.

`past` turns recorded runs into a cluster and its jobs, `rules` counts for a policy's limits, `waits` compares
waits, and `search` tries one step at a time. There are no proposals if the model does not reproduce the
recorded waits.
"""
