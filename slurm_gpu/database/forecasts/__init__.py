"""Train and serve forecasts of waiting times, and compare them with the outcomes.

`runs` reads the accounting and the queue as samples for `slurm_gpu.forecast`, `training` learns from them,
`store` keeps models and forecasts, `predicting` makes forecasts, and `api` serves them.
"""
