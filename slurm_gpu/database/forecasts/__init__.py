"""Train and serve forecasts of waiting times, and compare them with the outcomes.

`runs` converts accounting and the queue into samples for `slurm_gpu.forecast`. `training` learns from them,
`store` stores models and forecasts, `predicting` makes forecasts, and `api` serves them.
"""
