"""Represent the allocations of this node's GPUs as reported by the hooks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from slurm_gpu.node.allocation.hooks import HookEvent, HookKind
from slurm_gpu.node.clock_step import STEP_S
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.process.cgroup import JobOwner


def new_segment() -> str:
    """Return a new segment ID: 64 random bits in hexadecimal."""
    return os.urandom(8).hex()  # `secrets` would load OpenSSL


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job's GPUs on this node, observed without interruption since `start_s`.

    `start_s` is Clock.monotonic() during the boot `key.boot_id`, and `start_wall_s` is that time by the wall
    clock: the time of the prolog, or of a restart of slurm-gpud. `begun_s` is Clock.monotonic() at the
    prolog. `prolog_at_s` is the prolog's wall-clock time in the hook file, which distinguishes the runs of a
    job. `devices` maps positions to UUIDs; unknown devices are absent. `is_reported` is true while Slurm, but
    no hook, has reported the run. `recorded_until_s` (Clock.monotonic()) is the end of the records of earlier
    segments, or None in the first segment.
    """

    key: SegmentKey
    prolog_at_s: float
    begun_s: float
    start_s: float
    start_wall_s: float
    positions: tuple[int, ...]
    devices: Mapping[int, str] = field(default_factory=dict)
    uid: int | None = None
    sluid: str | None = None
    is_reported: bool = False
    recorded_until_s: float | None = None

    @property
    def device_names(self) -> Sequence[str]:
        """Return the names of the devices in records: UUIDs, or `position:N` for unknown devices."""
        return [self.device_name(position) for position in self.positions]

    def device_name(self, position: int) -> str:
        """Return the name of the device at that position."""
        return self.devices.get(position, f"position:{position}")

    @property
    def is_from_prolog(self) -> bool:
        """Return whether this segment starts at the run's prolog."""
        return self.start_s == self.begun_s and not self.is_reported

    @classmethod
    def from_prolog(cls, event: HookEvent, cluster: str, node: str, wall_s: float) -> Allocation:
        """Return the allocation that starts with a prolog at wall-clock time `wall_s`.

        `cluster` is used if the hook did not report one.
        """
        return cls(
            key=SegmentKey(
                cluster=event.cluster or cluster,
                job_id=event.job_id,
                restart=event.restart,
                prolog_s=int(wall_s),
                node=node,
                boot_id=event.boot_id,
                segment=new_segment(),
            ),
            prolog_at_s=event.at_s,
            begun_s=event.uptime_s,
            start_s=event.uptime_s,
            start_wall_s=wall_s,
            positions=event.positions,
            uid=event.uid,
            sluid=event.sluid,
        )

    def of_run(self, restart: int, since_s: float) -> Allocation:
        """Adapt this allocation, built from an epilog, to a run that began at `since_s` without a prolog."""
        wall_s = self.start_wall_s - (self.start_s - since_s)
        key = replace(self.key, restart=restart, prolog_s=int(wall_s))
        return replace(
            self, key=key, prolog_at_s=wall_s, begun_s=since_s, start_s=since_s, start_wall_s=wall_s
        )

    def confirmed(self, event: HookEvent) -> Allocation:
        """Return the allocation with the data of the run's prolog, which arrived late."""
        return replace(
            self,
            prolog_at_s=event.at_s,
            begun_s=event.uptime_s,
            uid=event.uid,
            sluid=event.sluid,
            is_reported=False,
        )

    def continued(self, now_s: float, wall_s: float, recorded_until_s: float) -> Allocation:
        """Return the allocation as a new segment that starts now; earlier records end at `recorded_until_s`.

        If the wall clock was set after the prolog, the prolog's time is converted to the new clock, because
        the times in a record are compared with each other.
        """
        prolog_at_s = wall_s - (now_s - self.begun_s)
        # prolog_s is in whole seconds.
        was_set = abs(prolog_at_s - self.key.prolog_s) > STEP_S + 1
        prolog_s = int(prolog_at_s) if was_set else self.key.prolog_s
        key = replace(self.key, segment=new_segment(), prolog_s=prolog_s)
        return replace(
            self, key=key, start_s=now_s, start_wall_s=wall_s, recorded_until_s=min(recorded_until_s, now_s)
        )

    def ended_before(self, end_s: float) -> Allocation:
        """Return the allocation ended at `end_s`, which precedes this segment if the epilog is very late.

        In that case, the allocation starts where the previous segment ended, so that it covers the time until
        `end_s`.
        """
        if self.recorded_until_s is None or end_s >= self.start_s:
            return self
        wall_s = self.start_wall_s - (self.start_s - self.recorded_until_s)
        return replace(self, start_s=self.recorded_until_s, start_wall_s=wall_s)

    def to_json(self) -> dict[str, Any]:
        """Return the allocation as a JSON object for the spool."""
        return {
            **asdict(self.key),
            "prolog_at_s": self.prolog_at_s,
            "begun_s": self.begun_s,
            "start_s": self.start_s,
            "start_wall_s": self.start_wall_s,
            "positions": list(self.positions),
            "devices": {str(position): uuid for position, uuid in self.devices.items()},
            "uid": self.uid,
            "sluid": self.sluid,
            "is_told": self.is_reported,
            "told_until_s": self.recorded_until_s,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allocation:
        """Create an allocation from a JSON object in the spool."""
        # Older versions saved only the wall clock of the prolog.
        begun_s = value["start_s"] - max(0.0, value["start_wall_s"] - value["prolog_at_s"])
        return cls(
            key=SegmentKey(**{f.name: value[f.name] for f in fields(SegmentKey)}),
            prolog_at_s=value["prolog_at_s"],
            begun_s=value.get("begun_s", begun_s),
            start_s=value["start_s"],
            start_wall_s=value["start_wall_s"],
            positions=tuple(value["positions"]),
            devices={int(position): uuid for position, uuid in value["devices"].items()},
            uid=value["uid"],
            sluid=value["sluid"],
            is_reported=value.get("is_told", False),
            recorded_until_s=value.get("told_until_s"),
        )


@dataclass(frozen=True, slots=True)
class EndedAllocation:
    """An allocation that ended at `end_s` (Clock.monotonic()); `epilog` is None if there was no epilog."""

    allocation: Allocation
    end_s: float
    epilog: HookEvent | None = None


class Allocations:
    """The open allocations of this node, at most one per raw job ID."""

    def __init__(self) -> None:
        self._open: dict[int, Allocation] = {}

    def __iter__(self) -> Iterator[Allocation]:
        return iter(list(self._open.values()))

    def put(self, allocation: Allocation) -> None:
        """Add or replace an allocation."""
        self._open[allocation.key.job_id] = allocation

    def of_job(self, job_id: int) -> Allocation | None:
        """Return the open allocation of the job with that raw ID, or None if there is none.

        Epilogs are matched by job ID only, because the epilog of a requeued job contains the restart count of
        the next run.
        """
        return self._open.get(job_id)

    def remove(self, allocation: Allocation) -> None:
        """Remove an allocation."""
        del self._open[allocation.key.job_id]

    def owners(self) -> Mapping[int, JobOwner]:
        """Return the owners of the open jobs by job ID, to attribute processes to jobs."""
        return {job: JobOwner(a.uid, a.sluid) for job, a in self._open.items()}


def is_of_run(event: HookEvent, allocation: Allocation) -> bool:
    """Return whether the prolog belongs to the allocation's run."""
    run = allocation.key.restart, allocation.key.boot_id, set(allocation.positions)
    return run == (event.restart, event.boot_id, set(event.positions))


def epilog_between(before: Allocation, after: Allocation, events: Iterable[HookEvent]) -> HookEvent | None:
    """Return the epilog that ran between two runs of a job, or None if its file no longer exists."""
    ends = [
        event
        for event in events
        if event.kind is HookKind.EPILOG
        and (event.job_id, event.boot_id) == (before.key.job_id, before.key.boot_id)
        and before.begun_s <= event.uptime_s <= after.begun_s
    ]
    return min(ends, default=None, key=lambda event: event.uptime_s)


def is_before(event: HookEvent, allocation: Allocation) -> bool:
    """Return whether the epilog ran before the allocation's prolog."""
    same_boot = event.boot_id == allocation.key.boot_id
    return same_boot and event.uptime_s < allocation.begun_s and not allocation.is_reported
