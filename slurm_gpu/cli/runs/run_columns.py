"""Define the columns of `slurm-gpu jobs` and choose among them with --format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from slurm_gpu.cli.output import is_narrow
from slurm_gpu.cli.runs.filters import SHORT_STATES
from slurm_gpu.errors import UsageError
from slurm_gpu.text.cells import (
    GAP,
    count,
    energy,
    hours,
    minute,
    moment,
    not_quite,
    number,
    short_minute,
    span,
    text,
)
from slurm_gpu.wire.answers.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumn:
    """A column of the table; `keys` are the same values in JSON, CSV and Parquet."""

    title: str
    keys: Sequence[str]
    cell: Callable[[Run, CellContext], str]
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellContext:
    """The zone of times, and the coverage below which values are marked as not reliable."""

    zone: ZoneInfo
    min_coverage: float

    def is_thin(self, run: Run) -> bool:
        """Return whether too little of the run was measured."""
        return run.coverage is not None and run.coverage < self.min_coverage

    def measured(self, run: Run, value: float | None, digits: int) -> str:
        """Format a measured value, marked if it is not reliable."""
        return number(value, digits) + ("*" if value is not None and self.is_thin(run) else "")


def _word(title: str, field: str) -> RunColumn:
    return RunColumn(title=title, keys=(title,), cell=lambda run, _: text(getattr(run, field)))


def _time(title: str) -> RunColumn:
    key = f"{title}_s"
    return RunColumn(title=title, keys=(key,), cell=lambda run, at: moment(getattr(run, key), at.zone))


def _hours(title: str, field: str) -> RunColumn:
    return RunColumn(
        title=title, keys=(title,), cell=lambda run, _: hours(getattr(run, field)), is_number=True
    )


def _duration(title: str, key: str) -> RunColumn:
    return RunColumn(title=title, keys=(key,), cell=lambda run, _: span(getattr(run, key)), is_number=True)


def _end(run: Run, at: CellContext) -> str:
    """Return the end, or the latest end of a running job according to its time limit."""
    show = short_minute if is_narrow() else minute
    if run.end_s is not None:
        return show(run.end_s, at.zone)
    if run.state != "RUNNING" or run.start_s is None or run.time_limit_s is None:
        return GAP
    return f"by {show(run.start_s + run.time_limit_s + (run.suspended_s or 0), at.zone)}"


def _state(run: Run, _: CellContext) -> str:
    """Return the state in full, or squeue's abbreviation on a narrow terminal."""
    return SHORT_STATES.get(run.state, run.state) if is_narrow() else run.state


_ALL = (
    RunColumn(title="JobID", keys=("id",), cell=lambda run, _: run.id),
    _word("name", "name"),
    _word("user", "user"),
    _word("account", "account"),
    _word("partition", "partition"),
    _word("qos", "qos"),
    RunColumn(title="state", keys=("state",), cell=_state),
    RunColumn(title="nNODE", keys=("nNODE",), cell=lambda run, _: number(run.n_nodes), is_number=True),
    RunColumn(
        title="nGPU",
        keys=("nGPU",),
        cell=lambda run, _: count(run.n_gpus if run.has_started else run.n_gpus_requested),
        is_number=True,
    ),
    RunColumn(
        title="elapsed/limit",
        keys=("elapsed_s", "time_limit_s"),
        cell=lambda run, _: f"{span(run.elapsed_s if run.has_started else None)}/{span(run.time_limit_s)}",
        is_number=True,
    ),
    _duration("elapsed", "elapsed_s"),
    _duration("limit", "time_limit_s"),
    _time("submit"),
    _time("eligible"),
    _time("start"),
    RunColumn(title="end", keys=("end_s",), cell=_end, is_number=True),
    _hours("WAIT_h", "wait_h"),
    _hours("SUBMIT_WAIT_h", "submit_wait_h"),
    _hours("RUN_h", "run_h"),
    RunColumn(
        title="uGPUcore",
        keys=("uGPUcore",),
        cell=lambda run, at: at.measured(run, run.ugpucore, 1),
        is_number=True,
    ),
    RunColumn(
        title="uGPUmem",
        keys=("uGPUmem",),
        cell=lambda run, at: at.measured(run, run.ugpumem, 1),
        is_number=True,
    ),
    RunColumn(
        title="coverage",
        keys=("coverage",),
        cell=lambda run, at: at.measured(run, not_quite(run.coverage), 2),
        is_number=True,
    ),
    RunColumn(title="energy", keys=("energy_j",), cell=lambda run, _: energy(run.energy_j), is_number=True),
    _word("nodes", "nodes"),
    _word("gpu_type", "gpu_type"),
    _word("server_type", "server_type"),
    _word("zone", "zone"),
    _word("app", "app"),
    _word("app_field", "app_field"),
    _word("exit_code", "exit_code"),
)
TITLES = tuple(column.title for column in _ALL)
_BY_NAME = {
    name.lower(): column
    for column in _ALL
    for name in (column.title, *(column.keys if len(column.keys) == 1 else ()))
}
_USUAL = (
    *("JobID", "name", "user", "account", "state", "nNODE", "nGPU", "elapsed/limit", "end"),
    *("WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"),
)


def usual_columns(*, with_user: bool) -> Sequence[RunColumn]:
    """Return the columns of the table without --format."""
    return tuple(_BY_NAME[title.lower()] for title in _USUAL if with_user or title != "user")


def columns_of(names: str) -> Sequence[RunColumn]:
    """Return the columns of --format; accept titles and JSON keys in any case."""
    chosen = []
    for word in names.split(","):
        column = _BY_NAME.get(word.strip().lower())
        if column is None:
            raise UsageError(
                f"--format: {word.strip()!r} is not a column; the columns are {', '.join(TITLES)}"
            )
        chosen.append(column)
    return tuple(dict.fromkeys(chosen))
