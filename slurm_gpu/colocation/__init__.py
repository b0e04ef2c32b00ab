"""Choose which jobs share a GPU, by profiles, predicted slowdowns and planners.

Pure functions of profiles and the state of the GPUs, without Slurm or a database. `simulation` runs the
plans; its true speeds may differ from those that a planner assumes.
"""
