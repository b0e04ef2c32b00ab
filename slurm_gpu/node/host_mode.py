"""Record users' processes on GPUs as jobs on a machine without Slurm.

A job is one user's use of a set of GPUs, from the first process to the last. If the user returns to the same
GPUs within GONE_S, the job continues. Another job starts when the set changes: a process uses another GPU, or
one of several GPUs is unused for GONE_S. GPUs whose processes start within SETTLE_S belong to one set,
because they are probably used by one program. Processes that run for less than POLL_S may be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.files.owner import user_name
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
# Listing processes is expensive, so it is done only after a change in memory or processes, and at this
# interval.
LIST_S = 10.0
SETTLE_S = 3.0
# A user counts as gone only after this time without a process, since a script may start its next program.
LEFT_S = 2.5
GONE_S = 60.0
_NO_FILE = Path("/nonexistent")
_REMEMBERED = 10_000


class HostOrder:
    """Numbers GPUs in the order in which they are found, not in Slurm's order (node.allocation.gres)."""

    assumed: bool = False
    # GPUs are shared, but the user of each process is known.
    can_be_shared: bool = False
    # No slurmd runs on this machine.
    is_asking: bool = False
    is_silent: bool = False

    def __init__(self) -> None:
        self._uuids: list[str] = []

    def ask(self) -> None:
        """See DeviceOrder."""

    def news(self) -> bool:
        """See DeviceOrder; always False, because each device is numbered before its number is requested."""
        return False

    def position(self, uuid: str) -> int:
        """Return the number of a device."""
        if uuid not in self._uuids:
            self._uuids.append(uuid)
        return self._uuids.index(uuid)

    def uuids(self, positions: Sequence[int], devices: Sequence[DeviceProperties]) -> Mapping[int, str]:
        """Return the UUIDs of the present devices with these numbers."""
        there = {facts.uuid for facts in devices}
        known = {p: self._uuids[p] for p in positions if p < len(self._uuids)}
        return {position: uuid for position, uuid in known.items() if uuid in there}


@dataclass(slots=True)
class _UserSession:
    """The GPUs that one user is using.

    `first_s` and `last_s` are the times when each device was first and last observed in use, and `pids` are
    its last processes. `allocated` are the devices of the open allocation; `left_s` is the time when the last
    allocation of `job` ended.
    """

    uid: int
    job: HostRun | None = None
    allocated: frozenset[str] = frozenset()
    left_s: float = 0.0
    first_s: dict[str, float] = field(default_factory=dict)
    last_s: dict[str, float] = field(default_factory=dict)
    pids: dict[str, set[int]] = field(default_factory=dict)

    def add(self, device: str, pid: int, now_s: float) -> None:
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
        """Return whether all new devices have been in use for SETTLE_S, so that no more are expected."""
        return all(now_s - self.first_s[device] >= SETTLE_S for device in self.last_s.keys() - self.allocated)


class HostJobs:
    """A source of hook events (HookEvents), which it creates from the processes that NVML lists."""

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
        self._sessions: dict[int, _UserSession] = {}
        self._pids: Mapping[int, frozenset[int]] = {}
        # The last reading with a list of processes, by device; it also contains the used memory.
        self._listed: dict[str, Reading] = {}
        self.due_s = 0.0
        for allocation in spool.allocations():
            self._take_up(allocation)

    def remove(self, event: HookEvent) -> None:
        """Do nothing, because events are not stored in files."""

    def pids_of(self, uid: int) -> frozenset[int]:
        """Return the last known IDs of a user's processes on GPUs; this method is thread-safe."""
        return self._pids.get(uid, frozenset())

    def take(self) -> list[HookEvent]:
        """Return the starts and ends of allocations as events; sample the GPUs at most once every POLL_S."""
        now_s = self._clock.monotonic()
        if now_s < self.due_s:
            return []
        # Poll at multiples of POLL_S, to coincide with the samples of allocated devices.
        self.due_s = (now_s // POLL_S + 1) * POLL_S
        self._sample(now_s)
        self._pids = {
            uid: frozenset().union(*session.pids.values()) for uid, session in self._sessions.items()
        }
        events: list[HookEvent] = []
        for session in list(self._sessions.values()):
            events.extend(self._follow(session, now_s))
            if not session.last_s and (session.job is None or now_s - session.left_s >= GONE_S):
                del self._sessions[session.uid]
        return events

    def _take_up(self, allocation: Allocation) -> None:
        """Continue an open allocation of an earlier process, or end it if it is from an earlier boot."""
        job = self._spool.last_run(allocation.key.job_id)
        if job is None:
            return
        if allocation.key.boot_id != self._clock.boot_id():
            seen = [self._spool.last_record(allocation.key.segment, d) for d in allocation.device_names]
            self._spool.save_run(job.ended(max([r.last_s for r in seen if r is not None], default=0)))
            return
        now_s = self._clock.monotonic()
        devices = dict.fromkeys(allocation.devices.values(), now_s)
        self._sessions[job.uid] = _UserSession(
            job.uid, job, frozenset(devices), first_s=dict(devices), last_s=dict(devices)
        )
        for uuid in devices:
            self._order.position(uuid)

    def _sample(self, now_s: float) -> None:
        requests = [ReadRequest(uuid=facts.uuid) for facts in self._reader.facts]
        readings = self._reader.read_extra(requests)
        changed = [
            ReadRequest(uuid, processes=True) for uuid, r in readings.items() if self._may_differ(uuid, r)
        ]
        self._listed = {uuid: listed for uuid, listed in self._listed.items() if uuid in readings}
        self._listed |= self._reader.read_extra(changed)
        shown = {uuid: r.processes for uuid, r in self._listed.items() if r.processes is not None}
        for session in self._sessions.values():
            if not requests and not session.pids:
                # After a restart, the driver may not be loaded yet.
                session.last_s = dict.fromkeys(session.last_s, now_s)
            for uuid in session.pids.keys() - shown:
                # The device cannot be read now; its users count as present while their processes run.
                for pid in [pid for pid in session.pids[uuid] if self._processes.origin(pid) is not None]:
                    session.add(uuid, pid, now_s)
        for uuid, processes in shown.items():
            for process in processes:
                origin = self._processes.origin(process.pid)
                if origin is not None:
                    session = self._sessions.setdefault(origin.uid, _UserSession(origin.uid))
                    session.add(uuid, process.pid, now_s)

    def _may_differ(self, uuid: str, now: Reading) -> bool:
        """Return whether the device's processes may have changed: a new process changes the used memory."""
        then = self._listed.get(uuid)
        if then is None or then.processes is None or now.at_s - then.at_s >= LIST_S:
            return True
        if then.memory is None or then.memory != now.memory:
            return True
        return any(self._processes.origin(process.pid) is None for process in then.processes)

    def _follow(self, session: _UserSession, now_s: float) -> Iterator[HookEvent]:
        if not session.last_s:
            return
        if max(session.last_s.values()) <= now_s - LEFT_S:
            if not session.allocated:  # the processes ended before SETTLE_S
                yield self._begin(session, now_s)
            yield self._end(session, now_s)
            session.forget(now_s + 1)
            return
        session.forget(now_s - GONE_S)
        if session.last_s.keys() == session.allocated or not session.is_settled(now_s):
            return
        if session.allocated:
            yield self._end(session, now_s)
            session.first_s = dict.fromkeys(session.first_s, now_s)
        yield self._begin(session, now_s)

    def _begin(self, session: _UserSession, now_s: float) -> HookEvent:
        """Start an allocation of the devices in use, as part of the user's last job if that job continues."""
        begin_s = min(session.first_s.values())
        session.allocated = frozenset(session.last_s)
        job = session.job
        if job is not None and session.allocated == set(job.devices) and begin_s - session.left_s < GONE_S:
            session.job = job.resumed()
        else:
            session.job = HostRun(
                cluster=HOST_CLUSTER + self._name,
                # If the spool was lost, the IDs in it are unknown, but all are less than the current time.
                job_id=self._spool.next_job_id(int(self._clock.wall())),
                node=self._name,
                seq=1,
                uid=session.uid,
                user=user_name(session.uid),
                start_s=int(begin_s + self._offset_s),
                devices=sorted(session.allocated),
            )
        self._spool.save_run(session.job)
        return self._event(HookKind.PROLOG, session.job, session, begin_s)

    def _end(self, session: _UserSession, now_s: float) -> HookEvent:
        assert session.job is not None
        session.job = session.job.ended(int(now_s + self._offset_s))
        self._spool.save_run(session.job)
        event = self._event(HookKind.EPILOG, session.job, session, now_s)
        session.allocated, session.left_s = frozenset(), now_s
        return event

    @property
    def _offset_s(self) -> float:
        return wall_ahead_s(self._clock)

    def _event(self, kind: HookKind, job: HostRun, session: _UserSession, at_s: float) -> HookEvent:
        return HookEvent(
            path=_NO_FILE,
            kind=kind,
            at_s=at_s + self._offset_s,
            uptime_s=at_s,
            boot_id=self._clock.boot_id(),
            job_id=job.job_id,
            restart=0,
            positions=tuple(sorted(map(self._order.position, session.allocated))),
            uid=session.uid,
            cluster=job.cluster,
            node=self._name,
            sluid=None,
        )


class HostProcesses(ProcessJobs):
    """Assigns each process to the only open job of its user."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[int, int] = {}

    def job_of(self, pid: int, jobs: Mapping[int, JobOwner]) -> int | None:
        """See ProcessJobs; a process keeps its job after the process has ended or the job was closed."""
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
    """A source that ignores job reports, because slurm-gpudbd's cluster may have jobs with the same IDs."""

    def open_jobs(self) -> Sequence[int]:
        """See ShipmentSource."""
        return ()

    def update_jobs(self, jobs: JobFacts) -> None:
        """See ShipmentSource."""

    def end_jobs(self, jobs: JobFacts) -> None:
        """See ShipmentSource."""
