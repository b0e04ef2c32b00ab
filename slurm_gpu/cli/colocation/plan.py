"""`slurm-gpu colocation plan`: plan which jobs of a list share GPUs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import click

from slurm_gpu.cli.colocation.evaluate import checked_names, read_nets
from slurm_gpu.cli.colocation.train import SpeedTable
from slurm_gpu.cli.output import print_json, print_table
from slurm_gpu.colocation.registry import DEFAULT, planner
from slurm_gpu.colocation.research.price import Comparison, comparisons
from slurm_gpu.colocation.simulation.outcome import SharingOutcome, SharingTransition
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.tables.strict_csv import rows_of
from slurm_gpu.colocation.tables.strict_json import MOST_BYTES
from slurm_gpu.config.yaml_source import read_yaml
from slurm_gpu.errors import InputError
from slurm_gpu.files.source_root import SOURCE_ROOT
from slurm_gpu.text.cells import GAP
from slurm_gpu.text.spreadsheet import bare
from slurm_gpu.text.units import counted, few

PRICES = "prices.yaml"
_COLUMNS = ("start", "end", "GPU", "job", "application", "alone", "co-runners", "speed", "memory")
_FIELDS = ("application", "seconds", "submit_s")
_MOST_S = 10_000_000_000.0
"""The largest accepted number of seconds; as epoch seconds, it is a time in the year 2286."""


def plan_jobs(
    known: SpeedTable,
    file: TextIO,
    name: str | None,
    model: Path | None,
    n_gpus: int,
    prices: Path | None,
    *,
    as_json: bool,
) -> None:
    """Plan the jobs, and print their order, expected speeds and savings."""
    nets = read_nets([] if model is None else [model])
    (chosen,) = checked_names([_default(nets) if name is None else name], nets)
    jobs = read_jobs(file, known.measured.names)
    setting = known.setting(0, nets)
    ran = simulate(known.world, jobs, planner(chosen, setting), n_gpus=n_gpus)
    alone = simulate(known.world, jobs, planner("sjf", setting), n_gpus=n_gpus)
    compared = _compared(prices)
    lines = [
        _line(known, jobs, ran, job) for job in sorted(range(len(jobs)), key=lambda one: ran.start_s[one])
    ]
    # A job without co-runners pays for a whole GPU.
    shares = any(line["co_runners"] for line in lines)
    saved = {one.name: one.saved(alone.makespan_s, ran.makespan_s) if shares else None for one in compared}
    if as_json:
        print_json(
            {
                "planner": chosen,
                "makespan_s": ran.makespan_s,
                "one_by_one_s": alone.makespan_s,
                "saved": saved,
                "jobs": lines,
            }
        )
        return
    print_table(
        _COLUMNS,
        map(_cells, lines),
        right=("start", "end", "GPU", "job", "alone", "speed", "memory"),
        spare=("memory", "alone"),
    )
    click.echo(
        f"\n{counted(len(jobs), 'job')} planned by {chosen}: {ran.makespan_s:.0f} s, without sharing "
        f"{alone.makespan_s:.0f} s; {ran.together:.2f} jobs per GPU on average"
    )
    for one in compared:
        part = saved[one.name]
        if part is not None:
            click.echo(f"Price saved, {one.name} ({one.in_words}): {part:.1%}")
    if compared and not shares:
        click.echo("No job shares a GPU, so nothing is saved")


def _default(nets: Mapping[str, object]) -> str:
    """Return the planner of the first given model, or the default planner."""
    return next(iter(nets), DEFAULT)


def read_jobs(file: TextIO, names: Sequence[str]) -> list[SharingJob]:
    """Read CSV with the columns application, seconds and optionally submit_s; raise InputError if invalid."""
    path = str(getattr(file, "name", "JOBS"))
    try:
        text = file.read(MOST_BYTES + 1)
    except UnicodeDecodeError as error:
        raise InputError(path, 0, 0, f"is not UTF-8 text (byte {error.start})") from None
    if len(text) > MOST_BYTES:
        raise InputError(path, 0, 0, f"has more than {MOST_BYTES} characters")
    lines = [(line, row) for line, row in rows_of(text, Path(path)) if row]
    header = lines[0][1] if lines else []
    if header not in (list(_FIELDS[:2]), list(_FIELDS)):
        raise InputError(
            path,
            1,
            1,
            f"the columns {','.join(header)!r} must be {','.join(_FIELDS[:2])!r}, and optionally submit_s",
        )
    if len(lines) == 1:
        raise InputError(path, 1, 1, "the file has no jobs")
    at = {name: number for number, name in enumerate(names)}
    found = []
    for line, row in lines[1:]:
        try:
            found.append(_job(row, header, at))
        except ValueError as error:
            raise InputError(path, line, 1, str(error)) from None
    return found


def _job(row: Sequence[str], header: Sequence[str], at: Mapping[str, int]) -> SharingJob:
    if len(row) != len(header):
        raise ValueError(f"the line has {len(row)} cells, but the first line has {len(header)}")
    cells = dict(zip(header, row, strict=True))
    name = bare(cells["application"])
    if name not in at:
        raise ValueError(f"application {name!r} is not in the table, which has {few(at, 20)}")
    return SharingJob(at[name], _number(cells, "seconds", 0.001), _number(cells, "submit_s", 0))


def _number(cells: Mapping[str, str], key: str, least: float) -> float:
    text = cells.get(key, "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= _MOST_S:
        raise ValueError(f"{key} {text!r} must be a number of seconds from {least:g} to {_MOST_S:.0f}")
    return value


def _line(known: SpeedTable, jobs: Sequence[SharingJob], ran: SharingOutcome, job: int) -> dict[str, object]:
    application = jobs[job].application
    profile = known.world.profiles[application]
    gpu = next(one.gpu for one in reversed(ran.log) if one.job == job and one.what is SharingTransition.START)
    return {
        "job": job + 1,
        "application": profile.application,
        "gpu": gpu,
        "start_s": float(ran.start_s[job]),
        "end_s": float(ran.end_s[job]),
        "alone_s": jobs[job].work_s,
        "co_runners": [one + 1 for one in co_runners_of(ran, job)],
        "speed": float(1 / ran.slowdown[job]),
        "memory_mib": profile.peak("memory_mib"),
    }


def co_runners_of(ran: SharingOutcome, job: int) -> list[int]:
    """Return the co-runners of a job, in the order of their starts."""
    running: dict[int, int] = {}
    met: dict[int, None] = {}
    for event in ran.log:
        if event.what is SharingTransition.START:
            running[event.job] = event.gpu
        elif event.what in (SharingTransition.END, SharingTransition.OUT_OF_MEMORY):
            running.pop(event.job, None)
        if job in running:
            met |= {one: None for one, gpu in running.items() if gpu == running[job] and one != job}
    return list(met)


def _cells(line: Mapping[str, object]) -> tuple[str, ...]:
    others, memory = line["co_runners"], line["memory_mib"]
    assert isinstance(others, list)
    return (
        f"{line['start_s']:.0f}",
        f"{line['end_s']:.0f}",
        str(line["gpu"]),
        str(line["job"]),
        str(line["application"]),
        f"{line['alone_s']:.0f}",
        " ".join(map(str, others)) or GAP,
        f"{line['speed']:.2f}",
        GAP if memory is None else f"{memory:.0f}M",
    )


def _compared(prices: Path | None) -> tuple[Comparison, ...]:
    """Return the comparisons from the given or the default price file; none if there is no default file."""
    path = next((one for one in _price_files() if one.exists()), None) if prices is None else prices
    if path is None:
        return ()
    return comparisons(read_yaml(path))


def _price_files() -> tuple[Path, ...]:
    return (
        Path("/etc/slurm-gpu") / PRICES,
        Path(sys.prefix) / "share" / "slurm-gpu" / PRICES,
        Path("/usr/share/slurm-gpu") / PRICES,
        SOURCE_ROOT / "etc" / PRICES,
    )
