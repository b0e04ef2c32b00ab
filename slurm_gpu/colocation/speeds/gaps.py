"""Complete tables of speeds by predicting missing pairs."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.colocation.co_runner_views import CoRunnerView
from slurm_gpu.colocation.profiles.traits import traits_of_table
from slurm_gpu.colocation.speeds.predictor import predict
from slurm_gpu.colocation.tables.measured import Measured


def completed(table: Measured) -> Measured:
    """Return a table with the speeds of all pairs; speeds that were not measured are predicted.

    No prediction excludes a pair, since no predicted speed is 0.
    """
    lacking = table.lacking
    if not lacking:
        return table
    speed = predict(traits_of_table(table), table.table().speeds).speed
    predicted: dict[CoRunnerView, float] = {
        (one, (other,)): float(speed[one, other]) for one, other in lacking
    }
    return replace(table, speeds={**table.speeds, **predicted})
