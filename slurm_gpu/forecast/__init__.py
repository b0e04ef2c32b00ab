"""Forecast how long a job will wait, from jobs that waited before it.

`samples` contains observations of waiting jobs, and the outcome known at each moment. `tables` and
`regression` forecast from them. `forecaster` judges both on the last part of history, keeps the better one
and adds an interval. `model_file` stores a `model` as bytes. Forecasting needs numpy, reading a model
msgspec, and training a `regression` (`learn`) scikit-learn.
"""
