"""Choose which jobs share a GPU from profiles and predicted slowdowns, by planners.

The package depends only on profiles and the state of the GPUs, not on Slurm or a database. `simulation` runs
the plans, at true speeds that may differ from those that a planner assumes.
"""
