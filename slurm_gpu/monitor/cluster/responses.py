"""Build the body of each listing for a state and a viewer, in pure functions."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.allocation import ranges
from slurm_gpu.monitor.cluster.frames import is_for_all, only
from slurm_gpu.monitor.cluster.metrics import STATE
from slurm_gpu.monitor.cluster.reasons import meaning
from slurm_gpu.monitor.cluster.squares_svg import draw, plan
from slurm_gpu.monitor.cluster.state import PageState
from slurm_gpu.monitor.cluster.summary import gpu_types, wait_reasons
from slurm_gpu.monitor.viewer import Visibility
from slurm_gpu.text.units import parse_whole
from slurm_gpu.wire.answers.codec import to_json

_WHYS: dict[str, Any] = dict.fromkeys(("why", "decided_why", "ended_why"))


def layout(state: PageState, _: Visibility, __: str) -> bytes:
    """Return the layout of all squares."""
    return state.layout.body


def frame(state: PageState, visibility: Visibility, metric: str) -> bytes:
    """Return the frame of a metric, with one octet per square; raise UsageError for an unknown metric."""
    octets = state.frames.get(metric)
    if octets is None:
        raise UsageError(f"metric: {metric[:40]!r} is unknown; write one of {', '.join(state.frames)}")
    if visibility.everything or is_for_all(metric):
        return octets
    own = (squares for owner, squares in state.own.items() if visibility.owns(*owner))
    return only(octets, chain.from_iterable(own))


def jobs(state: PageState, visibility: Visibility, since: str) -> bytes:
    """Return the jobs that changed since a version, or all jobs."""
    return state.jobs.answer(read_version(since), visibility)


def attention(state: PageState, visibility: Visibility, _: str) -> bytes:
    """Return the jobs that need attention, with as much detail as the viewer may see."""
    alerts = [
        {
            "job_id": item.alert.job_id,
            "id": item.id,
            "user": item.user,
            "alert": item.alert.kind.value,
            "squares": ranges(item.squares),
            "since_s": item.alert.since_s,
            "coverage": round(item.alert.coverage, 3),
            "verdict": None if item.alert.diagnosis is None else asdict(item.alert.diagnosis),
        }
        for item in state.alerts
        if visibility.may_see(item.user, item.uid)
    ]
    suspects = _suspects(state) if visibility.everything else []
    # The time of the state is only in a header, so that a client gets 304 while the alerts remain the same.
    return dump({"alerts": alerts, "suspects": suspects, "complete_from_s": state.alerts_complete_from_s})


def _suspects(state: PageState) -> list[dict[str, Any]]:
    """Return the GPUs and nodes that several verdicts suspect, with their squares."""
    verdicts, square_of = state.seen.verdicts, state.layout.square_of
    gpus = {report.node: [item.uuid for item in report.devices] for report in state.seen.reports}
    return [
        {
            **asdict(item),
            "squares": ranges(
                sorted(
                    square_of[uuid]
                    for uuid in (gpus.get(item.node, ()) if item.device is None else (item.device,))
                    if uuid in square_of
                )
            ),
        }
        for item in (() if verdicts is None else verdicts.suspects)
    ]


def free(state: PageState, _: Visibility, __: str) -> bytes:
    """Return the number of free GPUs of each type, and the time at which the next one becomes free."""
    types = [
        {
            "type": kind.name,
            "total": kind.total,
            "free": kind.free,
            "allocated": kind.allocated,
            "out_of_service": kind.out_of_service,
            "next_free_s": kind.next_free_s,
        }
        for kind in gpu_types(state.seen.cluster)
    ]
    return dump({"types": types})


def queue(state: PageState, _: Visibility, __: str) -> bytes:
    """Return the reasons for waiting, and pending jobs by expected start, with unknown starts last."""
    cluster = state.seen.cluster
    reasons = [
        {
            "reason": item.reason,
            "meaning": meaning(item.reason),
            "n_jobs": item.n_jobs,
            "n_gpus": item.n_gpus,
            "next_start_s": item.next_start_s,
        }
        for item in wait_reasons(cluster)
    ]
    waiting = sorted(
        (job for job in cluster.jobs if job.state == "PENDING"),
        key=lambda job: (job.start_s is None, job.start_s or 0, job.submit_s or 0, job.job_id),
    )
    jobs = [{"job_id": job.job_id, "start_s": job.start_s} for job in waiting]
    return dump({"reasons": reasons, "jobs": jobs})


def reservations(state: PageState, visibility: Visibility, _: str) -> bytes:
    """Return reservations that have not ended. Only a reservation's user and operators see its reason."""
    known = state.seen.reservations
    shown = [
        item if visibility.may_see(item.user, item.uid) else replace(item, full=False, **_WHYS)
        for item in known or ()
    ]
    return dump({"reservations": to_json(shown), "known": known is not None})


def squares(state: PageState, visibility: Visibility, metric: str) -> bytes:
    """Return the frame of a metric as an SVG; raise UsageError for an unknown metric."""
    octets = frame(state, visibility, metric)
    known = state.layout.metrics[metric]
    at = dt.datetime.fromtimestamp(state.as_of_s(metric), dt.UTC)
    title = f"{known.title} of {state.layout.n_squares} GPUs, {at:%Y-%m-%d %H:%M:%S} UTC"
    states = state.frames[STATE.name]
    return draw(state.layout, plan(state.layout), known, octets, states, title).encode()


def known_version(state: PageState, since: str) -> str:
    """Return a known version as text. Return "" for an unknown version; the answer then contains all jobs."""
    version = read_version(since)
    return str(version) if version is not None and state.jobs.knows(version) else ""


def read_version(text: str) -> int | None:
    """Parse the version that a client sent; return None for "". Raise UsageError if it is invalid."""
    return read_whole("since", text, "the version of an earlier answer, a whole number")


def read_whole(name: str, text: str, meaning: str = "a whole number") -> int | None:
    """Parse a whole number; return None for "". Raise UsageError if the text is invalid."""
    if text == "":
        return None
    try:
        return parse_whole(text)
    except ValueError:
        raise UsageError(f"{name}: {text[:40]!r} must be {meaning}") from None


def dump(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
