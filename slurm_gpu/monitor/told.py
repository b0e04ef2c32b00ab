"""What each listing says of a state to who may see so much: pure functions that give a body."""

from __future__ import annotations

import json
from typing import Any

from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.frames import is_for_all, only
from slurm_gpu.monitor.holding import ranges
from slurm_gpu.monitor.state import State
from slurm_gpu.monitor.viewer import Flavour

_MOST_DIGITS = 18


def layout(state: State, _: Flavour, __: str) -> bytes:
    """All squares, by their places."""
    return state.layout.body


def frame(state: State, flavour: Flavour, metric: str) -> bytes:
    """One octet a square; raises UsageError where there is no such metric."""
    octets = state.frames.get(metric)
    if octets is None:
        raise UsageError(f"metric: {metric[:40]!r} is none; there are {', '.join(state.frames)}")
    if flavour.everything or is_for_all(metric):
        return octets
    return only(octets, state.own.get(flavour.user, ()))


def jobs(state: State, flavour: Flavour, since: str) -> bytes:
    """What changed since a version, or all."""
    return state.jobs.answer(read_version(since), flavour)


def attention(state: State, flavour: Flavour, _: str) -> bytes:
    """Jobs that need somebody's eye, as far as the viewer may see them."""
    flags = [
        {
            "job_id": item.flag.job_id,
            "id": item.id,
            "user": item.user,
            "concern": item.flag.concern.value,
            "squares": ranges(item.squares),
            "since_s": item.flag.since_s,
            "coverage": round(item.flag.coverage, 3),
        }
        for item in state.flags
        if flavour.may_see(item.user)
    ]
    return dump({"flags": flags, "as_of_s": state.seen.live_s})


def read_version(text: str) -> int | None:
    """The version that a client has; None for none. Raises UsageError."""
    if text == "":
        return None
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    raise UsageError(f"since: {text[:40]!r} must be the version of an earlier answer, a whole number")


def dump(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
