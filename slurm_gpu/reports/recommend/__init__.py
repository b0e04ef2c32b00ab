"""Which limits to change, by what was recorded: runs are replayed through the model with other limits.

`past` makes a cluster and its jobs of what was recorded, `rules` the counters of a policy's limits, `waits`
compares waits, and `search` tries one step at a time. Nothing is proposed where the model does not reproduce
the waits that were recorded.
"""
