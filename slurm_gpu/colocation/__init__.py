"""Choose which jobs share a GPU, by profiles, predicted slowdowns and planners.

Pure functions of profiles and the state of the GPUs, without Slurm or a database. `simulation` runs the
plans; the speeds that a planner assumes may differ from those in the simulation.
"""
