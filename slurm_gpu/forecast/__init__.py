"""Forecast a job's waiting time, based on the waits of earlier jobs.

`samples` contains observations of waiting jobs, and the outcome known at each moment. `tables` and
`regression` forecast waits from samples. `forecaster` evaluates both sources on the last part of history,
chooses one, corrects its forecasts by recent `errors` and adds an interval. `model_file` stores a `model` as
bytes. Forecasting needs numpy, reading a model needs msgspec, and training a `regression` (`learn`) needs
scikit-learn.
"""
