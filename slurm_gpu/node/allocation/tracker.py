"""Who holds which GPUs of this node, as the hooks tell it."""

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
    """A name for one unbroken watch: 64 random bits in hexadecimal."""
    return os.urandom(8).hex()  # secrets would load OpenSSL


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One job's hold on GPUs of this node, watched without a break since `start_s`.

    `start_s` is Clock.monotonic() in the boot of `key.boot_id`, `start_wall_s` the wall clock then: the
    prolog's stamps, or those of the restart after which the watch was taken up again. `begun_s` is
    Clock.monotonic() at the prolog, `prolog_at_s` its wall clock as it stands in the hook's file, which tells
    it apart from others of the same job. `devices` are UUIDs by position, absent while no driver told them.
    `is_told`: Slurm told of it, and no prolog yet. `told_until_s` (Clock.monotonic()) is until when the
    records of earlier watches tell of it, None if this is the first.
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
    is_told: bool = False
    told_until_s: float | None = None

    @property
    def device_names(self) -> Sequence[str]:
        """What its records are filed under: UUIDs, or `position:N` where none is known."""
        return [self.device_name(position) for position in self.positions]

    def device_name(self, position: int) -> str:
        """Return the name of the device at that position."""
        return self.devices.get(position, f"position:{position}")

    @property
    def is_from_prolog(self) -> bool:
        """Is it watched from its prolog on?"""
        return self.start_s == self.begun_s and not self.is_told

    @classmethod
    def from_prolog(cls, event: HookEvent, cluster: str, node: str, wall_s: float) -> Allocation:
        """What a prolog with GPUs begins, at `wall_s` of the wall clock as it is set now.

        `cluster` counts where the hook had none.
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
        """The same of a run that began at `since_s` without a prolog, made from its epilog."""
        wall_s = self.start_wall_s - (self.start_s - since_s)
        key = replace(self.key, restart=restart, prolog_s=int(wall_s))
        return replace(
            self, key=key, prolog_at_s=wall_s, begun_s=since_s, start_s=since_s, start_wall_s=wall_s
        )

    def confirmed(self, event: HookEvent) -> Allocation:
        """The same hold, now that the prolog of this very run has been seen after all."""
        return replace(
            self,
            prolog_at_s=event.at_s,
            begun_s=event.uptime_s,
            uid=event.uid,
            sluid=event.sluid,
            is_told=False,
        )

    def continued(self, now_s: float, wall_s: float, told_until_s: float) -> Allocation:
        """The same hold in a new segment that begins now; its records tell of it until `told_until_s`.

        Its prolog is told by the clock that it begins by, if somebody has set that since: a record's moments
        are compared with each other.
        """
        prolog_at_s = wall_s - (now_s - self.begun_s)
        # It is kept in whole seconds.
        was_set = abs(prolog_at_s - self.key.prolog_s) > STEP_S + 1
        prolog_s = int(prolog_at_s) if was_set else self.key.prolog_s
        key = replace(self.key, segment=new_segment(), prolog_s=prolog_s)
        return replace(
            self, key=key, start_s=now_s, start_wall_s=wall_s, told_until_s=min(told_until_s, now_s)
        )

    def ended_before(self, end_s: float) -> Allocation:
        """The same where it ended at `end_s`, before this watch of it began, as an epilog may tell late.

        It begins where the watch before left off then, so that nothing is missing between that and the end.
        """
        if self.told_until_s is None or end_s >= self.start_s:
            return self
        wall_s = self.start_wall_s - (self.start_s - self.told_until_s)
        return replace(self, start_s=self.told_until_s, start_wall_s=wall_s)

    def to_json(self) -> dict[str, Any]:
        """For the spool."""
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
            "is_told": self.is_told,
            "told_until_s": self.told_until_s,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allocation:
        """From the spool."""
        # An older slurm-gpud did not write down when the prolog ran, but for its wall clock.
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
            is_told=value.get("is_told", False),
            told_until_s=value.get("told_until_s"),
        )


@dataclass(frozen=True, slots=True)
class EndedAllocation:
    """An allocation that is over since `end_s` (Clock.monotonic()), by `epilog` if there was one."""

    allocation: Allocation
    end_s: float
    epilog: HookEvent | None = None


class Allocations:
    """The open allocations of this node, one per raw job id."""

    def __init__(self) -> None:
        self._open: dict[int, Allocation] = {}

    def __iter__(self) -> Iterator[Allocation]:
        return iter(list(self._open.values()))

    def put(self, allocation: Allocation) -> None:
        """Open it, or replace what is known of it."""
        self._open[allocation.key.job_id] = allocation

    def of_job(self, job_id: int) -> Allocation | None:
        """The open allocation of that raw job id.

        An epilog is matched by nothing else: that of a requeued job carries the next run's restart count.
        """
        return self._open.get(job_id)

    def remove(self, allocation: Allocation) -> None:
        """Close it."""
        del self._open[allocation.key.job_id]

    def owners(self) -> Mapping[int, JobOwner]:
        """The open jobs, for telling whose a process is."""
        return {job: JobOwner(a.uid, a.sluid) for job, a in self._open.items()}


def is_of_run(event: HookEvent, allocation: Allocation) -> bool:
    """Return whether that prolog is of the allocation's run."""
    run = allocation.key.restart, allocation.key.boot_id, set(allocation.positions)
    return run == (event.restart, event.boot_id, set(event.positions))


def epilog_between(before: Allocation, after: Allocation, events: Iterable[HookEvent]) -> HookEvent | None:
    """Return the epilog of a run of which the next has begun, if it is still there."""
    ends = [
        event
        for event in events
        if event.kind is HookKind.EPILOG
        and (event.job_id, event.boot_id) == (before.key.job_id, before.key.boot_id)
        and before.begun_s <= event.uptime_s <= after.begun_s
    ]
    return min(ends, default=None, key=lambda event: event.uptime_s)


def is_before(event: HookEvent, allocation: Allocation) -> bool:
    """Return whether that epilog ran before the allocation's prolog."""
    same_boot = event.boot_id == allocation.key.boot_id
    return same_boot and event.uptime_s < allocation.begun_s and not allocation.is_told
