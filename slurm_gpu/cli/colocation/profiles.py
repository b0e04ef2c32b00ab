"""`slurm-gpu colocation profiles` and `nearest`: write profiles, and find the profile nearest to a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import console, print_json, print_table, remark
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.times import parse_moment
from slurm_gpu.colocation.profiles.library import OTHER_APPLICATION, OTHER_KIND, Library
from slurm_gpu.colocation.profiles.profile_file import (
    as_json,
    read_profiles,
    write_profiles_csv,
    write_profiles_json,
)
from slurm_gpu.colocation.profiles.shards import Shards, shards_of
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.text.cells import GAP
from slurm_gpu.text.units import counted, parse_memory_mib

if TYPE_CHECKING:
    from rich.progress import Progress

    from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase

_MOST_MIB = 2**30
_COLUMNS = ("phase", "seconds", "util", "memory", "sm", "pcie")


def write_profiles(
    site: CommandSite, out: Path, files: Sequence[Path], since: str, *, files_only: bool
) -> None:
    """Write the profiles from the files and from runs that the caller may see, and print the path."""
    if out.suffix not in (".csv", ".json"):
        raise UsageError(
            f"{out}: profiles are written as CSV or JSON; name a file that ends in .csv or .json"
        )
    if files_only and not files:
        raise UsageError("--files-only requires FILES")
    library = Library(profile for file in files for profile in read_profiles(file))
    if not files_only:
        since_s = parse_moment("--since", since, ZoneInfo(site.config.timezone), site.wall())
        for profile in _recorded(site, since_s):
            library.add(profile)
    if not len(library):
        if files_only:
            raise UsageError(f"{', '.join(map(str, files))}: no profiles found")
        raise UsageError(
            f"no run since {since} has a profile: a profile requires a finished run of a known application "
            "on one "
            "whole GPU"
        )
    try:
        (write_profiles_json if out.suffix == ".json" else write_profiles_csv)(out, library)
    except OSError as error:
        raise OutsideError(f"{out}: cannot be written: {error.strerror}") from None
    remark(f"{counted(len(library), 'profile')} of {counted(sum(one.runs for one in library), 'run')}")
    click.echo(out)


def _recorded(site: CommandSite, since_s: int | None) -> Iterator[ApplicationProfile]:
    from slurm_gpu.client.application_profiles import recorded_profiles

    with site.database() as database, _progress() as bar:
        task = bar.add_task("runs with a profile", total=None)
        for profile in recorded_profiles(database, since_s=since_s):
            bar.advance(task)
            yield profile


@contextmanager
def _progress() -> Iterator[Progress]:
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    screen = console(sys.stderr)
    columns = (TextColumn("{task.completed:.0f} {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        yield bar


def parted(shards: int | None, gpu_memory: str | None) -> tuple[int, float] | None:
    """Return the shards of a GPU and its memory in MiB; None if neither is given.

    Raise UsageError if only one is given.
    """
    if shards is None and gpu_memory is None:
        return None
    if shards is None or gpu_memory is None:
        raise UsageError("--shards and --gpu-memory require each other, as in --shards 8 --gpu-memory 80G")
    try:
        capacity_mib = parse_memory_mib(gpu_memory)
    except ValueError as error:
        raise UsageError(f"--gpu-memory: {error}") from None
    if not 1 <= capacity_mib <= _MOST_MIB:
        raise UsageError(f"--gpu-memory {gpu_memory}: no GPU has this much memory; write it as in 80G")
    return shards, capacity_mib


def show_nearest(
    file: Path,
    application: str,
    gpu_model: str,
    kind: str,
    input_size: float | None,
    parameters: Mapping[str, str],
    parts: tuple[int, float] | None,
    *,
    as_data: bool,
) -> None:
    """Print the profile nearest to a job, and the shards that the job needs."""
    match = Library(read_profiles(file)).nearest(
        application,
        gpu_model,
        kind=kind,
        input_size=input_size,
        parameters=tuple(sorted(parameters.items())),
    )
    if match is None:
        raise UsageError(f"{file} has no profiles; `slurm-gpu colocation profiles` writes such a file")
    profile, distance = match.profile, match.distance
    needed = None if parts is None else shards_of(match, input_size, *parts)
    if as_data:
        answer = {"distance": distance, "profile": as_json(profile)}
        print_json(answer if needed is None else answer | {"shards": needed._asdict()})
        return
    known = [profile.kind, "" if profile.input_size is None else f"input {profile.input_size:g}"]
    known += [f"{name}={value}" for name, value in profile.parameters] + [counted(profile.runs, "run")]
    click.echo(f"{profile.application} on {profile.gpu_model}: {', '.join(one for one in known if one)}")
    click.echo(f"Distance {distance:g}: {_in_words(distance)}\n")
    rows = [_row(at, phase) for at, phase in enumerate(profile.phases, 1)]
    print_table(_COLUMNS, rows, right=_COLUMNS)
    if needed is not None:
        click.echo(f"\n{_of_shards(needed)}")


def _of_shards(shards: Shards) -> str:
    if shards.needed is None:
        return (
            f"The number of shards (of {shards.of}) that the job needs is unknown: {shards.why}; "
            "run the job once on a whole GPU"
        )
    return (
        f"The job needs {shards.needed} of {shards.of} shards, for {shards.why}: "
        f"sbatch --gres=shard:{shards.needed}"
    )


def _row(at: int, phase: ProfilePhase) -> tuple[str, ...]:
    memory = GAP if phase.memory_mib is None else f"{phase.memory_mib:.0f}M"
    return (
        str(at),
        f"{phase.seconds:.0f}",
        _part(phase.util),
        memory,
        _part(phase.sm),
        _part(phase.pcie),
    )


def _in_words(distance: float) -> str:
    if distance == 0:
        return "the same application and input, on this model of GPU"
    if distance < OTHER_APPLICATION:
        return "the same application with a different input, other parameters or another GPU model"
    if distance < OTHER_KIND:
        return "a different application of the same kind"
    return "a different application of a different kind: hardly comparable"


def _part(value: float | None) -> str:
    return GAP if value is None else f"{value:.0%}"
