"""Choose which jobs share a GPU.

Planners base their decisions on the profiles and the predicted slowdowns of applications. The package depends
only on profiles and the state of the GPUs, not on Slurm or a database. `simulation` executes the decisions at
true speeds, which may differ from the speeds that a planner assumes.
"""
