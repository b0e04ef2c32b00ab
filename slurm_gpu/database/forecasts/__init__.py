"""Forecasts of slurm-gpudbd: what is learned of its runs, what is told of waiting jobs, what came of it.

`runs` reads the accounting and slurmctld's queue as `slurm_gpu.forecast` looks at them, `training` learns
from it, `store` keeps models and forecasts, `foretelling` makes them, `api` answers by HTTP. `answer` alone
is for `database.client` too: it takes neither SQLAlchemy nor numpy.
"""
