"""Where jobs should go, so that GPUs stay whole for those that need many: functions of a cluster's state.

`state.Nodes` is that state. What the scores are, and where they come from: docs/placement.md.
"""
