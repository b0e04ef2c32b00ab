"""Rows of `sacct`: which columns are asked for, and how each becomes a field of AccountingRun.

The delimiter is a random word per call, so that no job name, comment or newline can forge a column.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.tres import parse_tres
from slurm_gpu.units import parse_slurm_time

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"(?P<base>\d+)(?:_(?P<task>\d+|\[.*\]))?(?:\+(?P<offset>\d+))?")


def _epoch(text: str) -> int | None:
    return int(text) if text.isdigit() and text != "0" else None


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _seconds(text: str) -> int:
    """Suspended is printed as [D-]HH:MM:SS."""
    return int(parse_slurm_time(text)) if text else 0


def _limit(text: str) -> int | None:
    """TimelimitRaw is whole minutes, or a word such as UNLIMITED."""
    return int(text) * 60 if text.isdigit() else None


def _state(text: str) -> str:
    """The word alone, of "CANCELLED by 1001"."""
    return text.partition(" ")[0]


def _nodes(text: str) -> str:
    return "" if text == "None assigned" else text


_COLUMNS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "Cluster": ("cluster", str),
    "JobIDRaw": ("job_id", int),
    "JobName": ("name", str),
    "User": ("user", str),
    "UID": ("uid", _whole),
    "Account": ("account", str),
    "QOS": ("qos", str),
    "Partition": ("partition", str),
    "State": ("state", _state),
    "ExitCode": ("exit_code", str),
    "Submit": ("submit_s", int),
    "Eligible": ("eligible_s", _epoch),
    "Start": ("start_s", _epoch),
    "End": ("end_s", _epoch),
    "ElapsedRaw": ("elapsed_s", int),
    "Suspended": ("suspended_s", _seconds),
    "TimelimitRaw": ("time_limit_s", _limit),
    "NNodes": ("n_nodes", int),
    "NodeList": ("nodes", _nodes),
    "ReqTRES": ("tres_requested", parse_tres),
    "AllocTRES": ("tres_allocated", parse_tres),
    "AdminComment": ("admin_comment", str),
}
_OPTIONAL: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "Restarts": ("restarts", _whole),
    "SLUID": ("sluid", lambda text: text or None),
}


def columns(available: str) -> list[str]:
    """Columns to ask for, given what `sacct --helpformat` prints: newer versions have more."""
    known = set(available.split())
    return ["JobID", *_COLUMNS, *(name for name in _OPTIONAL if name in known)]


def parse_rows(text: str, names: Sequence[str], mark: str) -> Iterator[AccountingRun]:
    """Runs in the output of `sacct --parsable --delimiter=<mark>`, whose every column ends with the mark.

    A row that cannot be read is logged and left out; SlurmError where the columns do not fit at all.
    """
    words = text.split(mark)
    if len(words) % len(names) != 1 or words[-1].strip():
        raise SlurmError(f"sacct printed {len(words) - 1} columns, not a multiple of {len(names)}")
    for start in range(0, len(words) - 1, len(names)):
        first, *others = words[start : start + len(names)]
        try:
            yield _run(dict(zip(names, [first.removeprefix("\n"), *others], strict=True)))
        except SlurmError as error:
            _tell_once(str(error))


@functools.lru_cache(maxsize=1024)
def _tell_once(message: str) -> None:
    """Log a row that cannot be read: it must not keep out the others, nor fill the log at each reading."""
    log.warning("%s; the row is left out", message)


def _run(row: Mapping[str, str]) -> AccountingRun:
    shown = _JOB_ID.fullmatch(row["JobID"])
    if shown is None:
        raise SlurmError(f"sacct: {row['JobID']!r} is not a job id")
    values: dict[str, Any] = {"restarts": None, "sluid": None}
    for column, text in row.items():
        if column == "JobID":
            continue
        name, read = _COLUMNS.get(column) or _OPTIONAL[column]
        try:
            values[name] = read(text)
        except ValueError as error:
            raise SlurmError(f"sacct: job {row['JobID']}, {column}: {error}") from None
    task, offset, base = shown["task"], shown["offset"], int(shown["base"])
    return AccountingRun(
        array_job_id=base if task is not None else None,
        array_task=int(task) if task is not None and task.isdigit() else None,
        het_job_id=base if offset is not None else None,
        het_offset=int(offset) if offset is not None else None,
        **values,
    )
