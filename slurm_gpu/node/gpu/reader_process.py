"""Read the GPUs through a child process, which is killed if a call hangs in the driver.

A device that does not answer in time counts as hung. Hung devices are excluded, and a new process continues
with the other devices. From time to time, a separate process checks whether the hung device answers again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_gpu.clock import Clock
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.reader_child import ReaderChild, ReaderFailedError, built
from slurm_gpu.node.gpu.reader_exits import ReaderExits
from slurm_gpu.node.gpu.reading import (
    DeviceProperties,
    Failure,
    ReadError,
    ReaderStartingError,
    Reading,
    ReadRequest,
    Results,
    Xid,
    reading_of,
)

log = logging.getLogger(__name__)

# A device must answer within this time; longer at the start, when the driver may have to load.
DEADLINE_S = 2.0
START_DEADLINE_S = 20.0
# Maximum wait of devices() for a starting process.
START_WAIT_S = 1.0
_MOMENT_S = 0.05
# First and longest delay before retrying a hung device, or restarting a failed process; it doubles each time.
HUNG_RETRY_S, HUNG_RETRY_MAX_S = 60.0, 900.0
CRASH_RETRY_S, CRASH_RETRY_MAX_S = 1.0, 60.0
# A device is excluded as hung after this many crashes in a row.
CRASHES = 3


class _Hung(NamedTuple):
    """An excluded device, which is probed again at `retry_s` (Clock.monotonic())."""

    why: str
    retry_s: float
    delay_s: float


class ReaderProcess:
    """A Reader in which each device has to answer within `deadline_s`.

    At the start, when the driver may have to be loaded first, the deadline is `start_deadline_s`. devices()
    waits at most `start_wait_s` for a starting process.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        deadline_s: float = DEADLINE_S,
        start_deadline_s: float = START_DEADLINE_S,
        start_wait_s: float = START_WAIT_S,
    ) -> None:
        self._clock = clock
        self._deadline_s, self._start_deadline_s = deadline_s, start_deadline_s
        self._start_wait_s = start_wait_s
        self._child: ReaderChild | None = None
        self._finding_deadline_s = start_deadline_s
        self._fresh = False
        self._ending: list[ReaderChild] = []
        self._probe: tuple[int, ReaderChild] | None = None
        self._count: int | None = None
        self._index_of: dict[str, int] = {}
        self._hung: dict[int, _Hung] = {}
        self._crashed_at: list[int] = []
        self.exits = ReaderExits(clock)
        self._start_at_s = self._start_delay_s = 0.0
        self._following: Sequence[ReadRequest] = ()
        self._every_s = self._until_s = self._followed_s = 0.0

    @property
    def pid(self) -> int | None:
        """Return the process ID of the current reader process, or None if there is none."""
        return None if self._child is None else self._child.pid

    def devices(self) -> Sequence[DeviceProperties]:
        """See Reader."""
        self._reap()
        self._following = ()
        self._try_hung()
        child = self._ready(self._start_wait_s)
        if not self._fresh:
            self._finding_deadline_s = self._deadline_s
            try:
                child.find(self._hung)
            except ReaderFailedError as error:
                self._crash(str(error))
            child = self._ready(self._deadline_s + _MOMENT_S)
        self._fresh = False
        return [facts for index in sorted(child.found) for facts in child.found[index]]

    @property
    def silent(self) -> Mapping[int, Failure]:
        """See Reader; the log contains the reason why a GPU does not answer."""
        found = {} if self._child is None else self._child.found
        lost = Failure(ReadError.LOST, "it does not answer")
        hung = {index: Failure(ReadError.HUNG, hung.why) for index, hung in self._hung.items()}
        return {index: lost for index, devices in found.items() if not devices} | hung

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        """See Reader; while the process starts, only hung devices are reported."""
        self._reap()
        self._following = ()
        readings: dict[str, Reading] = {}
        failures: dict[str, Failure] = {}
        xids: Sequence[Xid] = ()
        wanted = []
        for request in requests:
            hung = self._hung.get(self._index_of.get(request.uuid, -1))
            if hung is None:
                wanted.append(request)
            else:
                failures[request.uuid] = Failure(ReadError.HUNG, hung.why)
        try:
            child = self._ready(0.0)
        except ReaderStartingError:
            return Results(readings, failures)
        except NvmlError as error:
            failures |= dict.fromkeys((r.uuid for r in wanted), Failure(ReadError.DRIVER, str(error)))
            return Results(readings, failures)
        try:
            xids = self._read(child, wanted, readings, failures)
        except ReaderFailedError as error:
            self._crash(str(error), child.index_in_call)
        return Results(readings, failures, xids)

    @property
    def follows(self) -> bool:
        """See Follower."""
        return bool(self._following)

    @property
    def overdue_s(self) -> float:
        """See Follower."""
        return self._followed_s + self._every_s + self._deadline_s

    def follow(self, uuids: Sequence[str], every_s: float, until_s: float) -> None:
        """See Follower."""
        child = self._child
        if child is None or not child.ready:
            return
        self._following = [ReadRequest(uuid) for uuid in uuids]
        self._every_s, self._until_s, self._followed_s = every_s, until_s, _now_s()
        try:
            child.ask("follow", [self._following, every_s, until_s])
        except ReaderFailedError as error:
            self._following = ()
            self._crash(str(error))

    def followed(self) -> Sequence[tuple[str, Reading]]:
        """See Follower; the result includes readings made before the last request."""
        child = self._child
        if child is None:
            self._following = ()
            return ()
        try:
            message = child.receive(0.0) if self._following else None
        except ReaderFailedError as error:
            self._following = ()
            self._crash(str(error), child.index_in_call)
        else:
            if message is not None:
                self._following = ()
                self._crash(f"the NVML reader sent invalid data: {str(message)[:80]}")
        readings, child.followed = child.followed, []
        if readings:
            self._followed_s = readings[-1][1].at_s
        now_s = _now_s()
        if child.unfollowed or now_s >= self._until_s:
            self._following = ()  # the next read reports why a device does not answer
        if self._following and now_s >= self.overdue_s:
            self._following = ()
            # If no call is in progress, the process only lacks CPU time; the next request has a new deadline.
            if (index := child.index_in_call) is not None:
                self._leave_out(index, f"no answer within {self._deadline_s:g} s")
        return readings

    def close(self) -> None:
        """End all processes."""
        if self._probe is not None:
            self._end(self._probe[1])
        if self._child is not None:
            self._end(self._child)
        self._probe = self._child = None
        self._ending = [child for child in self._ending if not child.is_gone(self._deadline_s)]

    def _read(
        self,
        child: ReaderChild,
        wanted: Sequence[ReadRequest],
        readings: dict[str, Reading],
        failures: dict[str, Failure],
    ) -> Sequence[Xid]:
        """Send a read request and receive its answers; raise ReaderFailedError if the process fails."""
        child.ask("read", wanted)
        for request in wanted:
            match child.receive(self._deadline_s):
                case None:
                    index = child.index_in_call
                    if index is None:
                        raise ReaderFailedError("the NVML reader does not respond")
                    # Pending answers from other devices are lost; these devices are requested again.
                    failure = Failure(
                        ReadError.HUNG, self._leave_out(index, f"no answer within {self._deadline_s:g} s")
                    )
                    of_it = [r.uuid for r in wanted if self._index_of.get(r.uuid) == index]
                    failures.update(dict.fromkeys(of_it, failure))
                    return ()
                case ["reading", uuid, list(row)] if uuid == request.uuid:
                    readings[uuid] = built(reading_of, [row])
                case ["failure", uuid, kind, why] if uuid == request.uuid:
                    failures[uuid] = Failure(built(ReadError, [kind]), why)
                case message:
                    raise ReaderFailedError(f"the NVML reader sent invalid data: {str(message)[:80]}")
        match child.receive(self._deadline_s):
            case ["end", list(rows)]:
                xids = [built(Xid, row) for row in rows]
            case message:
                raise ReaderFailedError(f"the NVML reader sent {str(message)[:80]} instead of XIDs")
        self._crashed_at.clear()
        self._start_delay_s = 0.0
        if any(failure.kind is ReadError.DRIVER for failure in failures.values()):
            # Another driver version requires another library, which only a new process loads.
            self._end(child)
            self._child = None
        return xids

    # The process

    def _ready(self, wait_s: float) -> ReaderChild:
        """Return the process, once it has found its devices; until then, raise ReaderStartingError."""
        if self._child is None:
            self._start()
        child = self._child
        assert child is not None
        if child.ready:
            return child
        try:
            ready = self._wait_for_devices(child, wait_s)
        except NvmlError:
            self._end(child)
            self._child = None
            raise
        except ReaderFailedError as error:
            self._crash(str(error), child.next_index)
            raise ReaderStartingError(f"NVML: {error}") from error
        if not ready and child.silent_s > self._finding_deadline_s:
            self._abandon_finding(child)
        if self._hung and child.count is not None and child.count != self._count:
            # The indices have changed, so hung devices have to be detected again.
            self._hung.clear()
            self._restart()
            raise ReaderStartingError("NVML: the number of GPUs has changed")
        if not ready:
            raise ReaderStartingError("NVML: the driver is still starting")
        self._count = child.count
        self._index_of |= {f.uuid: index for index, found in child.found.items() for f in found}
        return child

    def _wait_for_devices(self, child: ReaderChild, wait_s: float) -> bool:
        """Wait at most `wait_s` until the process is ready; stop when its next message is overdue."""
        end_s = time.monotonic() + wait_s
        while not child.advance(min(wait_s, self._finding_deadline_s - child.silent_s + _MOMENT_S)):
            wait_s = end_s - time.monotonic()
            if wait_s <= 0 or child.silent_s > self._finding_deadline_s:
                return False
        return True

    def _abandon_finding(self, child: ReaderChild) -> None:
        """Exclude the device at which the search hangs, if known, and raise NvmlError."""
        if child.next_index is not None:
            self._count = child.count
            why = self._leave_out(child.next_index, f"not found within {self._finding_deadline_s:g} s")
            raise ReaderStartingError(f"NVML: GPU {child.next_index}: {why}")
        at_start = self._finding_deadline_s == self._start_deadline_s
        self._end(child)
        self._child = None
        if at_start:
            self._delay_start()
        raise NvmlError(f"NVML: the driver does not answer within {self._finding_deadline_s:g} s")

    def _start(self) -> None:
        wait_s = self._start_at_s - self._clock.monotonic()
        if wait_s > 0:
            raise ReaderStartingError(f"NVML: the reader failed; another starts in {wait_s:.0f} s")
        try:
            self._child = ReaderChild(self._hung)
        except OSError as error:
            self._delay_start()
            raise NvmlError(f"NVML: no reader can be started: {error.strerror}") from error
        self._fresh, self._finding_deadline_s = True, self._start_deadline_s

    def _restart(self) -> None:
        if self._child is not None:
            self._end(self._child)
        self._child = None
        try:
            self._start()
        except NvmlError as error:
            log.warning("%s", error)

    def _crash(self, why: str, index: int | None = None) -> None:
        """Prepare to start another process; the last one exited during a call to device `index`, if given."""
        log.warning("%s; another one is started", why)
        self.exits.add(why)
        self._crashed_at = [at for at in self._crashed_at if at == index]
        if index is not None:
            self._crashed_at.append(index)
            if len(self._crashed_at) >= CRASHES:
                self._leave_out(index, f"{CRASHES} processes crashed when they read it")
                return
        if self._child is not None:
            self._end(self._child)
        self._child = None
        self._start_at_s = self._clock.monotonic() + self._start_delay_s
        self._start_delay_s = min(CRASH_RETRY_MAX_S, max(CRASH_RETRY_S, 2 * self._start_delay_s))

    def _delay_start(self) -> None:
        self._start_delay_s = min(CRASH_RETRY_MAX_S, max(CRASH_RETRY_S, 2 * self._start_delay_s))
        self._start_at_s = self._clock.monotonic() + self._start_delay_s

    def _end(self, child: ReaderChild) -> None:
        child.kill()
        self._ending.append(child)
        self._reap()

    def _reap(self) -> None:
        self._ending = [child for child in self._ending if not child.is_gone()]

    # Hung devices

    def _leave_out(self, index: int, why: str) -> str:
        """Exclude a device and restart the process; return `why`."""
        before = self._hung.get(index)
        delay_s = HUNG_RETRY_S if before is None else min(HUNG_RETRY_MAX_S, 2 * before.delay_s)
        self._hung[index] = _Hung(why, self._clock.monotonic() + delay_s, delay_s)
        self._restart()
        return why

    def _try_hung(self) -> None:
        """Probe a hung device in a separate process as soon as all killed processes have ended."""
        if self._probe is not None:
            index, child = self._probe
            answers = self._probe_answers(index, child)
            if answers is None:
                return
            self._probe = None
            self._end(child)
            hung = self._hung.get(index)
            if answers:
                self._hung.pop(index, None)
            elif hung is not None:
                delay_s = min(HUNG_RETRY_MAX_S, 2 * hung.delay_s)
                self._hung[index] = hung._replace(retry_s=self._clock.monotonic() + delay_s, delay_s=delay_s)
        now_s = self._clock.monotonic()
        due = [index for index, hung in self._hung.items() if hung.retry_s <= now_s]
        if due and not self._ending:
            self._probe = due[0], ReaderChild(only=due[0])

    def _probe_answers(self, index: int, child: ReaderChild) -> bool | None:
        """Return whether the probed device answers, or None while that is unknown."""
        try:
            if child.advance(0.0):
                return bool(child.found.get(index))
        except (ReaderFailedError, NvmlError):
            return False
        return False if child.silent_s > self._start_deadline_s else None


def _now_s() -> float:
    """Return the time of the clock that readings use, CLOCK_BOOTTIME, even if tests replace `Clock`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
