"""Recommend new limits by replaying recorded runs through the model of the queue.

`past` turns recorded runs into a cluster and its jobs, `rules` turns a policy's limits into counters, `waits`
compares waits, and `search` tries one change at a time. There are no proposals if the model does not
reproduce the recorded waits.
"""
