"""What must survive this daemon: open allocations, runs that ended of late, records, events.

Of each segment the newest records (of devices and of the host) stay until slurm-gpudbd has taken them, as
events do, or has said that it never will: those are kept as files in `rejected/`. There are limits to what
may wait, on disk and in memory while the disk is full. Beyond them the oldest is given up, and counted.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.errors import OutsideError, RecordError
from slurm_gpu.node.clockstep import Offset
from slurm_gpu.node.held.allocations import Allocation
from slurm_gpu.node.shipping.journal import Journal
from slurm_gpu.node.shipping.rejected import RejectedFiles
from slurm_gpu.node.shipping.spooled import is_count, is_event, is_of_segment, is_run, restored
from slurm_gpu.node.shipping.spoolmark import is_lost, leave_mark
from slurm_gpu.records import Event, Host, HostRun, Record

log = logging.getLogger(__name__)

# More than 24 hours without slurm-gpudbd, with jobs of 10 s on each of 8 GPUs all the time.
MAX_BYTES = 256 << 20
MAX_BYTES_IN_MEMORY = 64 << 20
# There is room again when so much of the limit is used at most.
_ROOM_FRACTION = 0.9
_JOB_ID = re.compile(r"\d{1,18}", re.ASCII)
_SHIPPED_AS = {"record": "records", "host": "hosts", "event": "events", "run": "runs"}
_LAST_JOB_ID = "last_job_id"
_DROPPED = "dropped"
_ENDED = "ended/"
# Stands in every log: one without it was made anew, or somebody emptied it.
_OPENED = "opened"
FORMAT = 1
"""Of what lies in the spool: greater where an older slurm-gpud would misunderstand it."""
_FORMAT = "format"
_CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ship, as it stood when it was picked: a record (with its `seq`), a host, or an event."""

    key: str
    seq: int
    wire: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The list of a shipment to which it belongs: records, hosts or events."""
        return _SHIPPED_AS[self.key.partition("/")[0]]


class NewerSpoolError(OutsideError):
    """The spool was written by a release that this one knows too little of."""


class Spool:
    """`<state-dir>/spool`; changes are durable once `commit` has returned True.

    Raises OSError as Journal does, and NewerSpoolError.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int = MAX_BYTES,
        max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY,
        mark: Path | None = None,
    ) -> None:
        """`mark` is a file elsewhere that is made with the first spool, so that its loss is noticed."""
        self._journal = Journal(directory)
        self._is_whole = self._journal.is_whole and _OPENED in self._journal
        self.was_lost = mark is not None and is_lost(directory, mark, is_new=_OPENED not in self._journal)
        if self._sign(directory) and mark is not None:
            leave_mark(mark)
        self._max_bytes, self._max_bytes_in_memory = max_bytes, max_bytes_in_memory
        self._rejected = RejectedFiles(directory / "rejected")
        # What is to be shipped, and whether it should go at once.
        self._waiting: dict[str, bool] = {}
        # The seq of each run of a machine without Slurm that has not ended.
        self._open_runs: dict[str, int] = {}
        # The records of open allocations, by segment.
        self._of_open: dict[str, set[str]] = {
            key.removeprefix("allocation/"): set() for key in self._journal.keys("allocation/")
        }
        for key, _ in self._sound("event/", is_event):
            self._waiting[key] = True
        for key, wire in self._sound("run/", is_run):
            self._note_run(key, wire)
            if wire["seq"] > self._shipped_seq(key):
                self._waiting[key] = True
        segments = self._sound("record/", is_of_segment), self._sound("host/", is_of_segment)
        for key, wire in itertools.chain(*segments):
            if wire["segment"] in self._of_open:
                self._of_open[wire["segment"]].add(key)
            if wire["seq"] > self._shipped_seq(key):
                self._waiting[key] = wire["final"] or wire["segment"] not in self._of_open

    def _sound(self, prefix: str, is_sound: Callable[[Any], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is kept there; what cannot be that, as a disk or a hand leaves it, is told of and let go."""
        for key in self._journal.keys(prefix):
            value = self._journal.get(key)
            if is_sound(value):
                yield key, value
            else:
                log.error("%s cannot be read and is left out: %.300r", key, value)
                self._journal.remove(key)

    def _number(self, key: str) -> int | None:
        """A whole number that is kept there, None where there is none."""
        value = self._journal.get(key)
        return value if is_count(value) else None

    def _sign(self, directory: Path) -> bool:
        """Say in which format this release writes, unless a newer one has been here that wrote in another.

        False where that could not be written now.
        """
        written = self._journal.get(_FORMAT)  # None: by 0.1, whose format was 1
        match written:
            case {"format": int(number), "version": str(version)} if number > FORMAT:
                self._journal.close()
                raise NewerSpoolError(
                    f"{directory}: slurm-gpud {version} wrote here in format {number}, of which slurm-gpud "
                    f"{__version__} knows up to {FORMAT}: install {version} or a later release again, or "
                    "move the directory away with the records that wait in it"
                )
        ours = {"format": FORMAT, "version": __version__}
        if written != ours:
            self._journal.put(_FORMAT, ours)
        if _OPENED not in self._journal:
            self._journal.put(_OPENED, True)
        return self._journal.commit()

    def commit(self) -> bool:
        """Flush to disk; False while it is full. Records of running jobs give way to all others.

        So does what is known of runs that ended: none of that is on disk before the run's final record.
        """
        self._keep_within_limits()
        return self._journal.commit(self._gives_way)

    def take_dropped(self) -> int:
        """How many records and events were given up since last asked; 0 too while there is no room yet."""
        if self._journal.failing or self._journal.size_bytes > _ROOM_FRACTION * self._max_bytes:
            return 0
        dropped = self._number(_DROPPED)
        self._journal.remove(_DROPPED)
        return 0 if dropped is None else dropped

    @property
    def is_whole(self) -> bool:
        """Is all here that an earlier process left? Not in a new, emptied or damaged one."""
        return self._is_whole

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        return self._journal.size_bytes

    @property
    def failing(self) -> bool:
        """Could the disk not be written when it was last tried?"""
        return self._journal.failing

    def close(self) -> None:
        """Give up the file."""
        self._journal.close()

    # Allocations

    def allocations(self) -> list[Allocation]:
        """Those that were open when the spool was last written.

        One that cannot be read is left out: Slurm will say that the job runs, and it is watched anew.
        """
        found = []
        for key in self._journal.keys("allocation/"):
            value = self._journal.get(key)
            try:
                found.append(Allocation.from_json(value))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                log.error("%s cannot be read and is left out: %r in %s", key, error, value)  # noqa: TRY400
                self._journal.remove(key)
                self._is_whole = False
        return found

    def save_allocation(self, allocation: Allocation) -> None:
        """It is open."""
        self._journal.put(f"allocation/{allocation.key.segment}", allocation.to_json())
        self._of_open.setdefault(allocation.key.segment, set())

    def drop_allocation(self, allocation: Allocation) -> None:
        """It is closed, or goes on as another segment; all of its records are shipped, and go then."""
        segment = allocation.key.segment
        self._journal.remove(f"allocation/{segment}")
        for key in self._of_open.pop(segment, ()):
            if key in self._waiting:
                self._waiting[key] = True
            else:
                self._forget(key)

    # Runs that ended of late (slurm_gpu.node.jobs.endedruns)

    def ended_runs(self) -> dict[int, Any]:
        """What was saved of each job, as JSON has it."""
        jobs = {key: _JOB_ID.fullmatch(key.removeprefix(_ENDED)) for key in self._journal.keys(_ENDED)}
        return {int(job[0]): self._journal.get(key) for key, job in jobs.items() if job is not None}

    def save_ended_run(self, job_id: int, value: Mapping[str, Any]) -> None:
        """Replace what is known of that job's last end."""
        self._journal.put(f"{_ENDED}{job_id}", value)

    def drop_ended_run(self, job_id: int) -> None:
        """Forget it; that nothing was known is no error."""
        self._journal.remove(f"{_ENDED}{job_id}")

    # How the clocks stood (slurm_gpu.node.clockstep)

    def clock_offset(self) -> Offset | None:
        """What was saved last; None if nothing was, or it cannot be read."""
        match self._journal.get(_CLOCK):
            case {"boot_id": str(boot_id), "ahead_s": int() | float() as ahead_s}:
                return Offset(boot_id, ahead_s)
        return None

    def save_clock_offset(self, offset: Offset) -> None:
        """Replace it."""
        self._journal.put(_CLOCK, offset._asdict())

    # Records and events

    def save_record(self, record: Record) -> bytes:
        """Replace what is known of this segment on this device; returns the record as JSON."""
        return self._save(f"record/{record.segment}/{record.device}", record)

    def save_host(self, host: Host) -> None:
        """Replace what is known of this segment's processes on the node."""
        self._save(f"host/{host.segment}", host)

    def last_record(self, segment: str, device: str) -> Record | None:
        """Return the newest one that was saved, without fields that are implausible."""
        wire = self._journal.get(f"record/{segment}/{device}")
        # Histogram keys are numbers in a record and words in JSON; from_wire knows.
        return None if wire is None else restored(Record.from_wire, wire)

    def last_host(self, segment: str) -> Host | None:
        """Return the newest one that was saved, likewise; None also if it cannot be read."""
        wire = self._journal.get(f"host/{segment}")
        try:
            return None if wire is None else restored(Host.from_wire, wire)
        except RecordError as error:
            log.error("what was written down of the host in %s cannot be read: %s", segment, error)  # noqa: TRY400
            return None

    def save_run(self, run: HostRun) -> None:
        """Replace what is known of a run on a machine without Slurm; kept while it goes on."""
        key, wire = f"run/{run.job_id}", run.to_wire()
        self._journal.put(key, wire)
        self._note_run(key, wire)
        self._waiting[key] = True

    def _note_run(self, key: str, wire: Mapping[str, Any]) -> None:
        self._open_runs.pop(key, None)
        if wire.get("end_s") is None:
            self._open_runs[key] = wire["seq"]

    def last_run(self, job_id: int) -> HostRun | None:
        """The newest one that was saved, if it goes on or waits; None also if it cannot be read."""
        wire = self._journal.get(f"run/{job_id}")
        try:
            return None if wire is None else HostRun.from_wire(wire)
        except RecordError as error:
            log.error("what was written down of run %d cannot be read: %s", job_id, error)  # noqa: TRY400
            return None

    def next_job_id(self, first: int) -> int:
        """A job id that was never used on a machine without Slurm; `first` where there was none yet."""
        last = self._number(_LAST_JOB_ID)
        job_id = first if last is None else last + 1
        self._journal.put(_LAST_JOB_ID, job_id)
        return job_id

    def save_event(self, event: Event) -> None:
        """Keep it until it is shipped."""
        key = f"event/{event.n}"
        self._journal.put(key, event.to_wire())
        self._waiting[key] = True

    # Shipping

    def urgent(self, limit: int) -> int:
        """How many final records and events are to be shipped; more than `limit` are not counted."""
        found = (key for key, urgent in self._waiting.items() if urgent)
        return sum(1 for _ in itertools.islice(found, limit))

    def __len__(self) -> int:
        """How many records and events wait to be shipped, now or some time."""
        return len(self._waiting)

    def waiting_keys(self) -> list[str]:
        """Keys of all that is to be shipped some time, oldest first."""
        return list(self._waiting)

    def never_shipped(self) -> list[str]:
        """Keys of what slurm-gpudbd has heard nothing of, oldest first."""
        return [key for key in self._waiting if f"shipped/{key}" not in self._journal]

    def is_young(self, key: str, least_held_s: float) -> bool:
        """Is it the record of a segment that has not ended and held its device for less than that?"""
        if not key.startswith("record/") or self._waiting.get(key) is not False:
            return False
        match self._journal.get(key):
            case {"held_s": int() | float() as held_s}:
                return held_s < least_held_s
        return False

    def shipped_open_runs(self) -> dict[int, int]:
        """Return the seq of each run that has not ended and that slurm-gpudbd has, by job id."""
        found = (item for item in self._open_runs.items() if item[0] not in self._waiting)
        return {int(key.removeprefix("run/")): seq for key, seq in found}

    def ship_open_runs_again(self) -> None:
        """Have runs that have not ended sent once more: slurm-gpudbd has lost them."""
        self._waiting.update(dict.fromkeys(self._open_runs, True))

    def waiting(self, limit: int, also: Set[str] = frozenset()) -> Sequence[Item]:
        """At most `limit` things to ship, oldest first: the urgent ones, and those whose keys are given."""
        keys = (key for key, urgent in self._waiting.items() if urgent or key in also)
        items = []
        for key in list(itertools.islice(keys, limit)):
            wire = self._journal.get(key)
            if wire is None:  # the disk has lost it
                self._drop(key)
            else:
                items.append(Item(key, wire.get("seq", 0), wire))
        return items

    def shipped(self, item: Item) -> None:
        """slurm-gpudbd has it; it may have been superseded meanwhile."""
        current = self._journal.get(item.key)
        if current is None:
            return
        if current.get("seq", 0) == item.seq:
            self._waiting.pop(item.key, None)
        if item.key in self._waiting or self._goes_on(item):
            self._journal.put(f"shipped/{item.key}", item.seq)
        else:
            self._forget(item.key)

    def reject(self, item: Item, why: str) -> None:
        """slurm-gpudbd will never take it: keep it as a file for people, and never send it again."""
        log.warning("%s was rejected: %s; kept in %s", item.key, why, self._rejected.directory)
        text = json.dumps({"why": why, "item": item.wire})
        try:
            self._rejected.keep(item.key, text)
        except OSError as error:
            log.error("%s cannot be kept: %s; it was %s", item.key, error, text)  # noqa: TRY400
        self.shipped(item)

    def _save(self, key: str, record: Record | Host) -> bytes:
        text = self._journal.put(key, record.to_wire())
        self._waiting[key] = record.final
        if record.segment in self._of_open:
            self._of_open[record.segment].add(key)
        return text

    def _goes_on(self, item: Item) -> bool:
        if item.kind == "events":
            return False
        if item.kind == "runs":
            return item.wire.get("end_s") is None
        return item.wire["segment"] in self._of_open

    def _gives_way(self, key: str) -> bool:
        is_intermediate = key.startswith(("record/", "host/")) and self._waiting.get(key) is not True
        return is_intermediate or key.startswith(_ENDED)

    def _keep_within_limits(self) -> None:
        """Give up the oldest that is too much; never what is known of running jobs, which is little."""
        journal = self._journal
        if journal.size_bytes <= self._max_bytes and journal.bytes_in_memory <= self._max_bytes_in_memory:
            return
        dropped = 0
        for key in [key for key, urgent in self._waiting.items() if urgent]:
            too_much_in_memory = journal.bytes_in_memory > self._max_bytes_in_memory
            if not too_much_in_memory and journal.size_bytes <= self._max_bytes:
                break
            if not too_much_in_memory or journal.in_memory(key):
                self._drop(key)
                dropped += 1
        if dropped:
            log.error("the spool is full: the %d oldest records and events that wait are given up", dropped)

    def _drop(self, key: str) -> None:
        self._waiting.pop(key, None)
        self._forget(key)
        dropped = self._number(_DROPPED)
        self._journal.put(_DROPPED, 1 if dropped is None else dropped + 1)

    def _shipped_seq(self, key: str) -> int:
        seq = self._number(f"shipped/{key}")
        return -1 if seq is None else seq

    def _forget(self, key: str) -> None:
        self._journal.remove(key)
        self._journal.remove(f"shipped/{key}")
