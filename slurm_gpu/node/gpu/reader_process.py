"""Reads the GPUs through a process that is killed where a call hangs in the driver.

The device whose answer is missing is the one that hangs. It is left out, and the others go on with the next
process; another, for that device alone, tries from time to time whether it answers again.
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

# How long a device may take to answer, and at the start, where the driver may have to load first.
DEADLINE_S = 2.0
START_DEADLINE_S = 20.0
# What devices() waits at most for a process that starts.
START_WAIT_S = 1.0
_MOMENT_S = 0.05
# When a device that hung is tried again, or a process started that ended at once: doubled each time.
HUNG_RETRY_S, HUNG_RETRY_MAX_S = 60.0, 900.0
CRASH_RETRY_S, CRASH_RETRY_MAX_S = 1.0, 60.0
# A device at which it ended so many times in a row is left out as if it hung.
CRASHES = 3


class _Hung(NamedTuple):
    """A device that is left out, by Clock.monotonic()."""

    why: str
    retry_s: float
    delay_s: float


class ReaderProcess:
    """A Reader; `deadline_s` is for each device.

    At the start, where the driver may have to load first, that is `start_deadline_s`; devices() waits no
    longer than `start_wait_s` for it.
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
        """The process id of what calls NVML just now."""
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
        """See Reader; its log says why a GPU does not answer."""
        found = {} if self._child is None else self._child.found
        lost = Failure(ReadError.LOST, "it does not answer")
        hung = {index: Failure(ReadError.HUNG, hung.why) for index, hung in self._hung.items()}
        return {index: lost for index, devices in found.items() if not devices} | hung

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        """See Reader; while the process starts, nothing comes but that some devices hang."""
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
        """See Follower; also what it had read on before it was asked for something else."""
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
                self._crash(f"the reader of NVML talks nonsense: {str(message)[:80]}")
        readings, child.followed = child.followed, []
        if readings:
            self._followed_s = readings[-1][1].at_s
        now_s = _now_s()
        if child.unfollowed or now_s >= self._until_s:
            self._following = ()  # the next read tells why a device does not answer
        if self._following and now_s >= self.overdue_s:
            self._following = ()
            # One that gets no processor asks none, and has its time to answer once it is asked.
            if (index := child.index_in_call) is not None:
                self._leave_out(index, f"no answer within {self._deadline_s:g} s")
        return readings

    def close(self) -> None:
        """End the process."""
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
        """One conversation; raises ReaderFailedError."""
        child.ask("read", wanted)
        for request in wanted:
            match child.receive(self._deadline_s):
                case None:
                    index = child.index_in_call
                    if index is None:
                        raise ReaderFailedError("the reader of NVML does nothing")
                    # Answers of others may have waited in it; they are asked again.
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
                    raise ReaderFailedError(f"the reader of NVML talks nonsense: {str(message)[:80]}")
        match child.receive(self._deadline_s):
            case ["end", list(rows)]:
                xids = [built(Xid, row) for row in rows]
            case message:
                raise ReaderFailedError(
                    f"the reader of NVML should have said its XIDs, not {str(message)[:80]}"
                )
        self._crashed_at.clear()
        self._start_delay_s = 0.0
        if any(failure.kind is ReadError.DRIVER for failure in failures.values()):
            # Another driver needs another library, which only another process loads.
            self._end(child)
            self._child = None
        return xids

    # The process

    def _ready(self, wait_s: float) -> ReaderChild:
        """The process, once it knows its devices; raises NvmlError, ReaderStartingError."""
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
            # Indices are not what they were: whoever hangs has to be found again.
            self._hung.clear()
            self._restart()
            raise ReaderStartingError("NVML: the number of GPUs has changed")
        if not ready:
            raise ReaderStartingError("NVML: the driver is still starting")
        self._count = child.count
        self._index_of |= {f.uuid: index for index, found in child.found.items() for f in found}
        return child

    def _wait_for_devices(self, child: ReaderChild, wait_s: float) -> bool:
        """Wait until it is ready, for so long and not longer than it may be silent."""
        end_s = time.monotonic() + wait_s
        while not child.advance(min(wait_s, self._finding_deadline_s - child.silent_s + _MOMENT_S)):
            wait_s = end_s - time.monotonic()
            if wait_s <= 0 or child.silent_s > self._finding_deadline_s:
                return False
        return True

    def _abandon_finding(self, child: ReaderChild) -> None:
        """It has been silent for too long: leave out what it looks at."""
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
        """The process ended by itself, at that device if one is given: start another, later each time."""
        log.warning("%s; another one is started", why)
        self.exits.add(why)
        self._crashed_at = [at for at in self._crashed_at if at == index]
        if index is not None:
            self._crashed_at.append(index)
            if len(self._crashed_at) >= CRASHES:
                self._leave_out(index, f"{CRASHES} processes crashed when they asked it")
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

    # Devices that hang

    def _leave_out(self, index: int, why: str) -> str:
        """From now on go on without that device; returns why."""
        before = self._hung.get(index)
        delay_s = HUNG_RETRY_S if before is None else min(HUNG_RETRY_MAX_S, 2 * before.delay_s)
        self._hung[index] = _Hung(why, self._clock.monotonic() + delay_s, delay_s)
        self._restart()
        return why

    def _try_hung(self) -> None:
        """Let a process of its own try a device that hung, once the last one that did is gone."""
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
        """None as long as it may still do so."""
        try:
            if child.advance(0.0):
                return bool(child.found.get(index))
        except (ReaderFailedError, NvmlError):
            return False
        return False if child.silent_s > self._start_deadline_s else None


def _now_s() -> float:
    """The clock that stamps readings, whatever the one given says."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
