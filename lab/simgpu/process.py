"""Identify a process by its ID and start time."""

from __future__ import annotations

from pathlib import Path

# Positions among the fields of /proc/PID/stat that follow the name.
_STATE, _START_TICKS = 0, 19


def start_ticks(pid: int) -> int | None:
    """Return the start time of ``pid`` in clock ticks since boot; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_START_TICKS])


def is_alive(pid: int, started: int) -> bool:
    """Return whether the process that started at ``started`` exists and is not a zombie."""
    return start_ticks(pid) == started
