"""Which jobs to let share a GPU: profiles, what sharing does to speed and memory, and planners.

Pure functions of profiles and a view of the GPUs; they know neither Slurm nor a database. The model that runs
their plans is `simulator`; what they are given to believe may differ from what is true there.
"""
