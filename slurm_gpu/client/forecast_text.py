"""Describe in words how far a forecast can be trusted, for the terminal and the page."""

from __future__ import annotations

from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.forecast import Forecast

# With fewer forecasts than this, the text contains their numbers instead of a percentage.
_FEW = 20


def accuracy_in_words(forecast: Forecast) -> list[str]:
    """Return how many earlier forecasts were right, and whether this kind of forecast was validated."""
    kind = f"jobs {'with' if forecast.with_gpus else 'without'} GPUs"
    past, judged = forecast.past, forecast.judged
    right = "right: the job started in the predicted interval"
    if past.n >= _FEW:
        lines = [f"of the last {past.n} forecasts on this cluster, {past.correct / past.n:.0%} were {right}"]
    elif past.n:
        lines = [
            f"right so far: {past.correct} of {counted(past.n, 'forecast')} (the job started in the interval)"
        ]
    else:
        lines = ["no forecast on this cluster is old enough to be checked"]
    if judged is None:
        lines.append(f"not validated, because too few {kind} waited recently; treat this forecast as a guess")
    else:
        lines.append(
            f"validated on {kind} in recent weeks: {judged.within_2x:.0%} of forecasts were within a "
            f"factor of 2 of the actual wait, and {judged.within_3x:.0%} within a factor of 3"
        )
    return lines
