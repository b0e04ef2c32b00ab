"""Measure forecasts of waiting times in a chronological replay over snapshots of a real queue.

Each of the last snapshots is forecast from earlier data: models are trained again on earlier snapshots, with
the starts that had happened by then. By default, results cover the last third of the snapshots, which is not
used to choose parameters. `slurm_gpu.forecast` chooses its own within the history before each snapshot.

A file has one line per job that was pending at one poll of the queue, as published at
https://github.com/mila-iqia/slurm-queue-time-pred. Output of sacct cannot be used, because it lacks the state
of the queue. On a cluster with slurm-gpu, `slurm-gpu forecast train` prints the accuracy on its own jobs.

The output has three parts: all jobs, jobs with GPUs, and other jobs. Each part has lines for slurm-gpu, the
median of recent waits in the partition, and scikit-learn's gradient boosting on the same columns:

2x, 3x           fraction of forecasts within a factor of 2 and 3 of the remaining wait, from poll to start
bias             forecast divided by the remaining wait, median; 1 is best
MSE              mean squared error of the decimal logarithm of that ratio; 0 is best
whole 2x, 3x     the same fractions for the whole wait, from the submission
coverage         fraction of jobs that started within slurm-gpu's 80 % interval; 80 % is best
end ÷ beginning  the interval's longest wait divided by its shortest, median; smaller is more precise
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import input_errors, number
from bench.forecast_data import COLUMNS, TABLE_ORDER, read_folder, waited_before_s
from slurm_gpu.forecast.forecaster import LEARNED, Forecaster, Learner, train
from slurm_gpu.forecast.learn import learn
from slurm_gpu.forecast.regression import Regression
from slurm_gpu.forecast.samples import KIND, KINDS, SHORTEST_WAIT_S, Floats, QueueSamples, WaitSamples
from slurm_gpu.forecast.tables import wait_tables
from slurm_gpu.forecast.wait_grid import quantile

MOST_ROWS = 20_000
Baseline = Callable[[WaitSamples, QueueSamples], Floats]
EVERY_SAMPLE = 1000
"""Forecasts are calibrated with forecasts of earlier snapshots, each from its own history."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=textwrap.fill(
            f"Columns of a file, in any order: {', '.join(COLUMNS)}. Unknown values are empty.", 100
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of files *.csv or *.csv.gz")
    parser.add_argument("--last", type=number(1), help="number of snapshots to forecast (default: a third)")
    parser.add_argument(
        "--skip",
        type=number(0),
        default=0,
        help="number of snapshots to leave out at the end, for choosing parameters on earlier ones",
    )
    parser.add_argument("--history", type=number(1), help="number of earlier snapshots to use (default: all)")
    parser.add_argument("--once", action="store_true", help="train only once, before the first forecast")
    parser.add_argument("--quick", action="store_true", help="omit the gradient boosting, which is slow")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    with input_errors():
        samples = read_folder(arguments.data)
    every = np.unique(samples.at_s)
    last = max(1, len(every) // 3) if arguments.last is None else arguments.last
    if last + arguments.skip >= len(every):
        parser.error(
            f"{last} snapshots to forecast and {arguments.skip} to skip leave no earlier one: "
            f"{arguments.data} has {len(every)}"
        )
    moments = every[: len(every) - arguments.skip][-last:]
    if not np.any(np.isin(samples.at_s, moments) & ~np.isnan(samples.start_s)):
        sys.exit("forecast.py: no job of the snapshots to forecast has a start_time, so no wait is known")
    baselines: dict[str, Baseline] = {"partition median": partition_median}
    if not arguments.quick:
        baselines["gradient boosting"] = gradient_boosting
    # Models with a limited history differ between forecasts, although their time is the same.
    learner = learn if arguments.history else remembered(learn)
    said: dict[str, list[Floats]] = {name: [] for name in ("slurm-gpu", "low", "high", *baselines)}
    rows, sources = [], []
    trained: tuple[WaitSamples, Forecaster] | None = None
    for moment in moments:
        if trained is None or not arguments.once:
            before = every[every < moment][-(arguments.history or len(every)) :]
            known = samples[samples.at_s >= before.min(initial=moment)].known_at(moment)
            trained = known, train(known, TABLE_ORDER, samples.names, learner, EVERY_SAMPLE)
        past, forecaster = trained
        row = np.flatnonzero((samples.at_s == moment) & ~np.isnan(samples.start_s))
        now = samples[row]
        rows.append(row)
        found = forecaster.forecast(now)
        said["slurm-gpu"].append(found.median_s)
        said["low"].append(found.lower_s)
        said["high"].append(found.upper_s)
        sources.append(found.source)
        for name, baseline in baselines.items():
            said[name].append(baseline(past, now))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    values = report(
        samples[np.concatenate(rows)],
        {k: np.concatenate(v) for k, v in said.items()},
        np.concatenate(sources),
    )
    if arguments.json:
        print(json.dumps(values))


def remembered(learner: Learner) -> Learner:
    """Cache trained models by time, because each request for the same time gives the same model.

    Forecasts of earlier snapshots, which calibrate later ones, are therefore computed only once.
    """
    known: dict[float, Regression] = {}

    def learned(past: WaitSamples, names: Sequence[str], weight: Floats) -> Regression:
        if past.now_s not in known:
            known[past.now_s] = learner(past, names, weight)
        return known[past.now_s]

    return learned


def partition_median(past: WaitSamples, now: QueueSamples) -> Floats:
    """Return the median wait of started jobs in the partition over the last 14 days."""
    weight = past.started.astype(float)
    return quantile(wait_tables(past, ("partition",), weight).distribution(now), 0.5)


def gradient_boosting(past: WaitSamples, now: QueueSamples) -> Floats:
    """Forecast with the library's defaults, from all features of MOST_ROWS evenly spaced started jobs."""
    rows = np.flatnonzero(past.started)
    rows = rows[:: -(-len(rows) // MOST_ROWS)]
    model = HistGradientBoostingRegressor(random_state=0)
    model.fit(past.samples.features[rows], np.log2(past.wait_s[rows]))
    return np.asarray(2.0 ** model.predict(now.features))


def report(samples: QueueSamples, said: dict[str, Floats], sources: NDArray[np.str_]) -> dict[str, float]:
    """Print the accuracy for all jobs, jobs with GPUs and jobs without, and return it by name."""
    wait, before = np.maximum(samples.start_s - samples.at_s, SHORTEST_WAIT_S), waited_before_s(samples)
    gpu = samples.groups[KIND] == KINDS["gpu"]
    classes = {"all": np.ones(len(wait), dtype=bool), "gpu": gpu, "cpu": ~gpu}
    names = [name for name in said if name not in ("low", "high")]
    print(f"{np.mean(sources == LEARNED):.0%} of forecasts come from the regression")
    values: dict[str, float] = {}
    for kind, rows in classes.items():
        if not rows.any():
            continue
        title = f"{kind}: {rows.sum():,} jobs"
        print(f"{title:24} {'2x':>6} {'3x':>6} {'bias':>6} {'MSE':>6} {'whole 2x':>9} {'3x':>6}")
        for name in names:
            ratio = said[name][rows] / wait[rows]
            shares = [within(said[name], wait, rows, factor) for factor in (2, 3)]
            whole = [within(before + said[name], before + wait, rows, factor) for factor in (2, 3)]
            error = np.mean(np.log10(ratio) ** 2)
            print(
                f"{name:24} {shares[0]:6.3f} {shares[1]:6.3f} {np.median(ratio):6.2f} {error:6.3f} "
                f"{whole[0]:9.3f} {whole[1]:6.3f}"
            )
            values |= {f"{kind} {name} within 2x": shares[0], f"{kind} {name} within 3x": shares[1]}
        covered = np.mean((wait[rows] >= said["low"][rows]) & (wait[rows] <= said["high"][rows]))
        factor = np.median(said["high"][rows] / said["low"][rows])
        print(f"80 % interval: coverage {covered:.1%}, end ÷ beginning {factor:.1f} in the median\n")
        values |= {f"{kind} coverage": float(covered), f"{kind} end/beginning": float(factor)}
    return {key: round(value, 4) for key, value in values.items()}


def within(said: Floats, truth: Floats, rows: NDArray[np.bool_], factor: float) -> float:
    """Return the share of `rows` whose forecast is within a `factor` of the truth."""
    return float(np.mean(np.abs(np.log2(said[rows] / truth[rows])) <= np.log2(factor)))


if __name__ == "__main__":
    main()
