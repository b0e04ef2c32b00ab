"""Tables of speeds in which pairs lack, made whole by what the others tell."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.colocation.beside import Beside
from slurm_gpu.colocation.profiles.traits import traits_of_table
from slurm_gpu.colocation.speeds.predictor import predict
from slurm_gpu.colocation.tables.measured import Measured


def completed(table: Measured) -> Measured:
    """With the speed of each pair: as measured where it was, else as predicted.

    Which pairs cannot run together a table does not tell of others: none that is predicted has the speed 0.
    """
    lacking = table.lacking
    if not lacking:
        return table
    speed = predict(traits_of_table(table), table.table().speeds).speed
    predicted: dict[Beside, float] = {(one, (other,)): float(speed[one, other]) for one, other in lacking}
    return replace(table, speeds={**table.speeds, **predicted})
