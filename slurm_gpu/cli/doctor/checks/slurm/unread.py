"""Recognise settings that slurm.conf has, but that Slurm has not read yet."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, Level
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.slurm.conf_file import ConfLine, read_conf, settings_named, with_defaults, written
from slurm_gpu.slurm.runner import query_environment
from slurm_gpu.slurm.submission import read_partitions

_RunCheck = Callable[[DoctorContext], Iterator[CheckResult]]

# Slurm prints this setting as a part of another one.
_PART_OF = {"DefMemPerGPU": "JobDefaults"}
_PARTITION = "PartitionName"
_OF_PARTITION = {
    "DefMemPerGPU": "default_memory_per_gpu_mib",
    "DefMemPerCPU": "default_memory_per_cpu_mib",
    "DefMemPerNode": "default_memory_per_node_mib",
}
RECONFIGURE = "run scontrol reconfigure"
RESTART = "restart slurmctld"


def reads(*keys: str, remedy: str = RECONFIGURE) -> Callable[[_RunCheck], _RunCheck]:
    """Return a decorator for a check of the settings `keys`: it recognises problems that slurm.conf solves.

    If slurm.conf on this host has other values than slurmctld, problems that these values solve name the
    lines, and their remedy is `remedy`. If the values in slurm.conf have problems of their own, those are
    reported instead.
    """

    def decorate(check: _RunCheck) -> _RunCheck:
        @functools.wraps(check)
        def checked(at: DoctorContext) -> Iterator[CheckResult]:
            found = list(check(at))
            lines = unread_lines(at, *keys) if any(map(_is_problem, found)) else []
            if not lines:
                yield from found
                return
            later = [one for one in check(_after_reading(at, lines)) if _is_problem(one)]
            if not all(one in found for one in later):
                yield from (one for one in found if not _is_problem(one))
                yield from later
                return
            for one in found:
                solved = _is_problem(one) and one not in later
                yield not_read(at, one, lines, remedy) if solved else one

        return checked

    return decorate


def unread_lines(at: DoctorContext, *keys: str) -> list[ConfLine]:
    """Return the lines of slurm.conf on this host that set `keys` to other values than slurmctld's."""
    try:
        lines = read_conf(at.slurm_conf)
    except OSError:
        return []  # slurm.conf is on another host
    last = [dataclasses.replace(line, key=key) for key in keys for line in settings_named(lines, key)[-1:]]
    found = [line for line in last if line.key != _PARTITION and _differs(at, line)]
    if _PARTITION in keys:
        found += _unread_partitions(at, lines, keys)
    return found


def _unread_partitions(
    at: DoctorContext, lines: Sequence[ConfLine], keys: Sequence[str]
) -> Iterator[ConfLine]:
    """Yield the lines of partitions that set one of `keys` to another value than slurmctld's."""
    read = {one.name: one for one in read_partitions(at.site.run, query_environment(os.environ))}
    for line in settings_named(lines, _PARTITION):
        own = read.get(line.value)
        values = {} if own is None else {key: getattr(own, name) for key, name in _OF_PARTITION.items()}
        texts = {key: line.get(key) for key in keys}
        if any(text is not None and text != str(values.get(key)) for key, text in texts.items()):
            pairs = [(key, text) for key, text in texts.items() if text is not None]
            yield dataclasses.replace(line, key=_PARTITION, pairs=pairs)


def not_read(at: DoctorContext, one: CheckResult, lines: Sequence[ConfLine], remedy: str) -> CheckResult:
    """Return the finding for a problem that these lines solve as soon as Slurm reads them."""
    texts = [f"{line.place} has {line}" for line in lines]
    same = "" if at.is_controller else "make sure that slurmctld's slurm.conf has the same values, then "
    return dataclasses.replace(
        one,
        message=f"{' and '.join(texts)}, which Slurm has not read yet; until then, {one.message}",
        remedy=same + remedy,
    )


def _is_problem(one: CheckResult) -> bool:
    return one.level in (Level.WARN, Level.FAIL)


def _differs(at: DoctorContext, line: ConfLine) -> bool:
    raw = at.settings.raw
    if line.key in _PART_OF:
        return written(line.key, line.value) not in raw.get(_PART_OF[line.key], "").split(",")
    return line.value.lower() != raw.get(line.key, "").lower()


def with_lines(settings: SlurmSettings, lines: Sequence[ConfLine]) -> SlurmSettings:
    """Return the settings that slurmctld will have after it has read these lines."""
    raw = dict(settings.raw)
    for line in lines:
        if line.key in _PART_OF:
            raw[_PART_OF[line.key]] = written(line.key, line.value)
        elif line.key != _PARTITION:
            raw[line.key] = line.value
    return dataclasses.replace(settings, raw=raw)


def _after_reading(at: DoctorContext, lines: Sequence[ConfLine]) -> DoctorContext:
    """Return the context in which slurmctld has read these lines."""
    partitions = with_defaults(read_conf(at.slurm_conf), _PARTITION)
    later = dataclasses.replace(at, read_later={line.value: line for line in partitions})
    later.settings = with_lines(at.settings, lines)
    later.nodes = at.nodes
    return later
