"""Define the columns of `slurm-gpu jobs`; their names are those of JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from slurm_gpu.cli.output import is_narrow
from slurm_gpu.errors import UsageError
from slurm_gpu.text.cells import GAP, count, energy, hours, minute, not_quite, number, span, text
from slurm_gpu.wire.answers.runs import Run

SHORT_STATES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "REQUEUED": "RQ",
    "RESIZING": "RS",
    "REVOKED": "RV",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
"""The abbreviations that squeue prints for Slurm's job states."""


@dataclass(frozen=True, slots=True)
class CellContext:
    """The settings of the site on which cells depend."""

    zone: ZoneInfo
    min_coverage: float

    def mark(self, run: Run) -> str:
        """Return the mark of values with a low coverage."""
        return "*" if self.is_thin(run) else ""

    def is_thin(self, run: Run) -> bool:
        """Return whether too little of the run was measured."""
        return run.coverage is not None and run.coverage < self.min_coverage


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column of the table."""

    title: str
    cell: Callable[[Run, CellContext], str]
    right: bool = True
    """Whether the values are numbers or times, which are right-aligned and never wrapped."""


def _time(at: Callable[[Run], int | None]) -> Callable[[Run, CellContext], str]:
    def cell(run: Run, context: CellContext) -> str:
        at_s = at(run)
        # As sacct: a time without spaces is one word for awk.
        return GAP if at_s is None else minute(at_s, context.zone).replace(" ", "T")

    return cell


def _text(value: Callable[[Run], str | None]) -> Callable[[Run, CellContext], str]:
    return lambda run, _: text(value(run))


def _marked(value: Callable[[Run], float | None]) -> Callable[[Run, CellContext], str]:
    def cell(run: Run, context: CellContext) -> str:
        known = value(run)
        return number(known, 1) + (context.mark(run) if known is not None else "")

    return cell


def _elapsed(run: Run, _: CellContext) -> str:
    return f"{span(run.elapsed_s)}/{'unlimited' if run.time_limit_s is None else span(run.time_limit_s)}"


# By name in JSON and CSV.
RUN_COLUMNS: Mapping[str, RunColumn] = {
    "id": RunColumn("JobID", lambda run, _: run.id, right=False),
    "name": RunColumn("name", _text(lambda run: run.name), right=False),
    "user": RunColumn("user", _text(lambda run: run.user), right=False),
    "account": RunColumn("account", _text(lambda run: run.account), right=False),
    "qos": RunColumn("QOS", _text(lambda run: run.qos), right=False),
    "partition": RunColumn("partition", _text(lambda run: run.partition), right=False),
    "state": RunColumn(
        "state",
        lambda run, _: SHORT_STATES.get(run.state, run.state) if is_narrow() else run.state,
        right=False,
    ),
    "exit_code": RunColumn("exit", _text(lambda run: run.exit_code)),
    "submit_s": RunColumn("submitted", _time(lambda run: run.submit_s)),
    "eligible_s": RunColumn("eligible", _time(lambda run: run.eligible_s)),
    "start_s": RunColumn("started", _time(lambda run: run.start_s)),
    "end_s": RunColumn("ended", _time(lambda run: run.end_s)),
    "elapsed_s": RunColumn("elapsed/limit", _elapsed),
    "nNODE": RunColumn("nNODE", lambda run, _: number(run.n_nodes)),
    "nGPU": RunColumn("nGPU", lambda run, _: count(run.n_gpus if run.has_started else run.n_gpus_requested)),
    "gpu_type": RunColumn("type", _text(lambda run: run.gpu_type), right=False),
    "WAIT_h": RunColumn("WAIT_h", lambda run, _: hours(run.wait_h)),
    "SUBMIT_WAIT_h": RunColumn("SUBMIT_WAIT_h", lambda run, _: hours(run.submit_wait_h)),
    "RUN_h": RunColumn("RUN_h", lambda run, _: hours(run.run_h)),
    "uGPUcore": RunColumn("uGPUcore", _marked(lambda run: run.ugpucore)),
    "uGPUmem": RunColumn("uGPUmem", _marked(lambda run: run.ugpumem)),
    "coverage": RunColumn(
        "coverage", lambda run, context: number(not_quite(run.coverage), 2) + context.mark(run)
    ),
    "energy_j": RunColumn("energy", lambda run, _: energy(run.energy_j)),
    "nodes": RunColumn("nodes", _text(lambda run: run.nodes), right=False),
    "server_type": RunColumn("server type", _text(lambda run: run.server_type), right=False),
    "zone": RunColumn("zone", _text(lambda run: run.zone), right=False),
    "app": RunColumn("application", _text(lambda run: run.app), right=False),
    "app_field": RunColumn("field", _text(lambda run: run.app_field), right=False),
}
DEFAULT_COLUMNS = (
    *("id", "name", "user", "account", "state", "nNODE", "nGPU", "WAIT_h", "elapsed_s", "end_s"),
    *("uGPUcore", "uGPUmem", "coverage"),
)
# Names of sacct and squeue for these columns.
_ALIASES = {
    "jobid": "id",
    "jobname": "name",
    "exitcode": "exit_code",
    "submit": "submit_s",
    "eligible": "eligible_s",
    "start": "start_s",
    "end": "end_s",
    "elapsed": "elapsed_s",
    "nnodes": "nNODE",
    "ngpus": "nGPU",
    "nodelist": "nodes",
    "consumedenergyraw": "energy_j",
}
_BY_NAME = {name.lower(): name for name in RUN_COLUMNS} | _ALIASES


def parse_format(names: str) -> Sequence[str]:
    """Return the columns of a list such as id,name,uGPUcore; raise UsageError for an unknown name."""
    found = []
    for name in names.split(","):
        column = _BY_NAME.get(name.strip().lower())
        if column is None:
            raise UsageError(
                f"--format: {name.strip()!r} is not a column; the columns are {', '.join(RUN_COLUMNS)}"
            )
        found.append(column)
    return tuple(dict.fromkeys(found))
