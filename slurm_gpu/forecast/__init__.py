"""How long a job will wait: from what became of jobs that waited before, and never from what came later.

`looks` holds what was seen of waiting jobs, and how much of their fate was known at a moment. `tables` and
`regression` forecast from it, `forecaster` judges both on the last part of history, takes the better one and
gives its forecasts an interval. `modelfile` keeps a `model` as bytes. numpy is all that forecasts take, and
msgspec to read a model; `learn` alone, which makes a `regression`, needs scikit-learn.
"""
