"""A machine without Slurm: what users' processes do on its GPUs is told as jobs, too.

A job is a user's stay on one set of GPUs. It begins with the first process there and ends with the last; who
is back on the same GPUs within GONE_S goes on with it. Where the set changes, because a process appears on
another GPU or one GPU of several was left for GONE_S, the next job begins. Processes that come within
SETTLE_S, as those of one program do, are of one set. A process that lives shorter than POLL_S may be missed.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.node.allocation.hooks import HookEvent, HookKind
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.gpu.reading import DeviceProperties, Reading, ReadRequest
from slurm_gpu.node.live import CachingReader, NodeSource
from slurm_gpu.node.process.cgroup import JobOwner
from slurm_gpu.node.process.process_jobs import ProcessJobs
from slurm_gpu.node.shipping.shipment import JobFacts
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import HOST_CLUSTER, HostRun

POLL_S = 1.0
# Processes are listed, which is dear, where memory or a process changed, and as often anyhow.
LIST_S = 10.0
SETTLE_S = 3.0
# Nobody is there who was not seen for so long: a program may end and start its next part.
LEFT_S = 2.5
GONE_S = 60.0
_NO_FILE = Path("/nonexistent")
_REMEMBERED = 10_000


class HostOrder:
    """Stands in for Slurm's order of GPUs (node.allocation.gres): the order in which they were found."""

    assumed: bool = False
    # They are, but of all processes it is known whose they are.
    can_be_shared: bool = False
    # There is nobody to ask.
    is_asking: bool = False
    is_silent: bool = False

    def __init__(self) -> None:
        self._uuids: list[str] = []

    def ask(self) -> None:
        """See Order."""

    def news(self) -> bool:
        """See Order; each device has its number before anybody asks for it."""
        return False

    def position(self, uuid: str) -> int:
        """The number of that device."""
        if uuid not in self._uuids:
            self._uuids.append(uuid)
        return self._uuids.index(uuid)

    def uuids(self, positions: Sequence[int], devices: Sequence[DeviceProperties]) -> Mapping[int, str]:
        """The devices with these numbers, as far as they are there."""
        there = {facts.uuid for facts in devices}
        known = {p: self._uuids[p] for p in positions if p < len(self._uuids)}
        return {position: uuid for position, uuid in known.items() if uuid in there}


@dataclass(slots=True)
class _Stay:
    """A user on GPUs.

    `first_s` and `last_s` tell when each device was seen in use, `pids` by which processes at last; `held` is
    what the open hold is of, `left_s` when the last hold of `job` ended.
    """

    uid: int
    job: HostRun | None = None
    held: frozenset[str] = frozenset()
    left_s: float = 0.0
    first_s: dict[str, float] = field(default_factory=dict)
    last_s: dict[str, float] = field(default_factory=dict)
    pids: dict[str, set[int]] = field(default_factory=dict)

    def saw(self, device: str, pid: int, now_s: float) -> None:
        self.first_s.setdefault(device, now_s)
        pids = self.pids.setdefault(device, set())
        if self.last_s.get(device) != now_s:
            pids.clear()
        pids.add(pid)
        self.last_s[device] = now_s

    def forget(self, since_s: float) -> None:
        for device in [device for device, last_s in self.last_s.items() if last_s < since_s]:
            del self.first_s[device], self.last_s[device]
            self.pids.pop(device, None)

    def is_settled(self, now_s: float) -> bool:
        """Is nothing so new that more of it may be to come?"""
        return all(now_s - self.first_s[device] >= SETTLE_S for device in self.last_s.keys() - self.held)


class HostJobs:
    """Stands in for the directory of hook events (held.hooks); they come of what NVML shows."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        reader: CachingReader,
        order: HostOrder,
        processes: ProcessJobs,
        spool: Spool,
    ) -> None:
        self._name, self._clock, self._reader, self._order = name, clock, reader, order
        self._processes, self._spool = processes, spool
        self._stays: dict[int, _Stay] = {}
        self._pids: Mapping[int, frozenset[int]] = {}
        # The last list of each device's processes, with its memory then.
        self._listed: dict[str, Reading] = {}
        self.due_s = 0.0
        for allocation in spool.allocations():
            self._take_up(allocation)

    def remove(self, event: HookEvent) -> None:
        """There is no file to remove."""

    def pids_of(self, uid: int) -> frozenset[int]:
        """Process ids of that user on GPUs, as last seen; may be called from any thread."""
        return self._pids.get(uid, frozenset())

    def take(self) -> list[HookEvent]:
        """Holds that have begun or ended since the last time; looks at the GPUs each POLL_S at most."""
        now_s = self._clock.monotonic()
        if now_s < self.due_s:
            return []
        # At whole multiples, so that it comes together with the looks at what is held.
        self.due_s = (now_s // POLL_S + 1) * POLL_S
        self._look(now_s)
        self._pids = {uid: frozenset().union(*stay.pids.values()) for uid, stay in self._stays.items()}
        events: list[HookEvent] = []
        for stay in list(self._stays.values()):
            events.extend(self._follow(stay, now_s))
            if not stay.last_s and (stay.job is None or now_s - stay.left_s >= GONE_S):
                del self._stays[stay.uid]
        return events

    def _take_up(self, allocation: Allocation) -> None:
        """What an earlier process left open; what was open in an earlier boot ended with it."""
        job = self._spool.last_run(allocation.key.job_id)
        if job is None:
            return
        if allocation.key.boot_id != self._clock.boot_id():
            seen = [self._spool.last_record(allocation.key.segment, d) for d in allocation.device_names]
            self._spool.save_run(job.ended(max([r.last_s for r in seen if r is not None], default=0)))
            return
        now_s = self._clock.monotonic()
        devices = dict.fromkeys(allocation.devices.values(), now_s)
        self._stays[job.uid] = _Stay(
            job.uid, job, frozenset(devices), first_s=dict(devices), last_s=dict(devices)
        )
        for uuid in devices:
            self._order.position(uuid)

    def _look(self, now_s: float) -> None:
        requests = [ReadRequest(uuid=facts.uuid) for facts in self._reader.facts]
        readings = self._reader.read_extra(requests)
        changed = [
            ReadRequest(uuid, processes=True) for uuid, r in readings.items() if self._may_differ(uuid, r)
        ]
        self._listed = {uuid: listed for uuid, listed in self._listed.items() if uuid in readings}
        self._listed |= self._reader.read_extra(changed)
        shown = {uuid: r.processes for uuid, r in self._listed.items() if r.processes is not None}
        for stay in self._stays.values():
            if not requests and not stay.pids:
                # After a restart, the driver is not there yet.
                stay.last_s = dict.fromkeys(stay.last_s, now_s)
            for uuid in stay.pids.keys() - shown:
                # It cannot be read now: who was there still is, as long as his processes live.
                for pid in [pid for pid in stay.pids[uuid] if self._processes.origin(pid) is not None]:
                    stay.saw(uuid, pid, now_s)
        for uuid, processes in shown.items():
            for process in processes:
                origin = self._processes.origin(process.pid)
                if origin is not None:
                    stay = self._stays.setdefault(origin.uid, _Stay(origin.uid))
                    stay.saw(uuid, process.pid, now_s)

    def _may_differ(self, uuid: str, now: Reading) -> bool:
        """May other processes be on that device than were listed last? One that comes takes memory."""
        then = self._listed.get(uuid)
        if then is None or then.processes is None or now.at_s - then.at_s >= LIST_S:
            return True
        if then.memory is None or then.memory != now.memory:
            return True
        return any(self._processes.origin(process.pid) is None for process in then.processes)

    def _follow(self, stay: _Stay, now_s: float) -> Iterator[HookEvent]:
        if not stay.last_s:
            return
        if max(stay.last_s.values()) <= now_s - LEFT_S:
            if not stay.held:  # it was too short to settle
                yield self._begin(stay, now_s)
            yield self._end(stay, now_s)
            stay.forget(now_s + 1)
            return
        stay.forget(now_s - GONE_S)
        if stay.last_s.keys() == stay.held or not stay.is_settled(now_s):
            return
        if stay.held:
            yield self._end(stay, now_s)
            stay.first_s = dict.fromkeys(stay.first_s, now_s)
        yield self._begin(stay, now_s)

    def _begin(self, stay: _Stay, now_s: float) -> HookEvent:
        """A hold of what is in use, since its first process; of the last job if that was just there."""
        begin_s = min(stay.first_s.values())
        stay.held = frozenset(stay.last_s)
        job = stay.job
        if job is not None and stay.held == set(job.devices) and begin_s - stay.left_s < GONE_S:
            stay.job = job.resumed()
        else:
            stay.job = HostRun(
                cluster=HOST_CLUSTER + self._name,
                # A spool that was lost does not tell which ids it gave: they are below this second.
                job_id=self._spool.next_job_id(int(self._clock.wall())),
                node=self._name,
                seq=1,
                uid=stay.uid,
                user=_user_name(stay.uid),
                start_s=int(begin_s + self._offset_s),
                devices=sorted(stay.held),
            )
        self._spool.save_run(stay.job)
        return self._event(HookKind.PROLOG, stay.job, stay, begin_s)

    def _end(self, stay: _Stay, now_s: float) -> HookEvent:
        assert stay.job is not None
        stay.job = stay.job.ended(int(now_s + self._offset_s))
        self._spool.save_run(stay.job)
        event = self._event(HookKind.EPILOG, stay.job, stay, now_s)
        stay.held, stay.left_s = frozenset(), now_s
        return event

    @property
    def _offset_s(self) -> float:
        return wall_ahead_s(self._clock)

    def _event(self, kind: HookKind, job: HostRun, stay: _Stay, at_s: float) -> HookEvent:
        return HookEvent(
            path=_NO_FILE,
            kind=kind,
            at_s=at_s + self._offset_s,
            uptime_s=at_s,
            boot_id=self._clock.boot_id(),
            job_id=job.job_id,
            restart=0,
            positions=tuple(sorted(map(self._order.position, stay.held))),
            uid=stay.uid,
            cluster=job.cluster,
            node=self._name,
            sluid=None,
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class HostProcesses(ProcessJobs):
    """A process belongs to its user's one open job."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[int, int] = {}

    def job_of(self, pid: int, jobs: Mapping[int, JobOwner]) -> int | None:
        """See ProcessJobs; one that has gone, or whose job is closed, stays with the job that it had."""
        origin = self.origin(pid)
        if origin is not None:
            job = next((job for job, owner in jobs.items() if owner.uid == origin.uid), None)
            if job is not None:
                if len(self._jobs) >= _REMEMBERED:
                    self._jobs.clear()
                self._jobs[pid] = job
                return job
        return self._jobs.get(pid)


class HostSource(NodeSource):
    """slurm-gpudbd knows nothing about these jobs; its Slurm may have others with the same ids."""

    def open_jobs(self) -> Sequence[int]:
        """See Source."""
        return ()

    def update_jobs(self, jobs: JobFacts) -> None:
        """See Source."""

    def end_jobs(self, jobs: JobFacts) -> None:
        """See Source."""
