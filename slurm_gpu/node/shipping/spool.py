"""Store the state of slurm-gpud on disk: open allocations, recently ended runs, records and events.

Records and events wait in the spool's queue (shipment_queue.py) until slurm-gpudbd has stored them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.errors import OutsideError, RecordError
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.clock_step import Offset
from slurm_gpu.node.shipping.journal import DurableMap
from slurm_gpu.node.shipping.rejected import RejectedFiles
from slurm_gpu.node.shipping.shipment_queue import MAX_BYTES, MAX_BYTES_IN_MEMORY, ShipmentQueue
from slurm_gpu.node.shipping.spooled import is_count, restored
from slurm_gpu.wire import Event, Host, HostRun, Record

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"\d{1,18}", re.ASCII)
_LAST_JOB_ID = "last_job_id"
_ENDED = "ended/"
# A key that every log contains; a log without it is new or was emptied.
_OPENED = "opened"
# The version of the spool's format; it is incremented when an older slurm-gpud would misread the spool.
FORMAT = 1
_FORMAT = "format"
_CLOCK = "clock"


class NewerSpoolError(OutsideError):
    """The spool was written by a newer release, in a newer format."""


class Spool:
    """The spool directory of slurm-gpud; changes are durable once `commit` has returned True.

    `queue` contains the items that have to be shipped. The constructor raises OSError in the same cases as
    DurableMap, and NewerSpoolError if a newer release wrote the spool in a newer format.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int = MAX_BYTES,
        max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY,
        mark: Path | None = None,
    ) -> None:
        """`mark` is a file outside the spool, created with the spool; it shows whether the spool was lost."""
        self._journal = DurableMap(directory)
        self._is_whole = self._journal.is_whole and _OPENED in self._journal
        self.was_lost = mark is not None and _was_lost(directory, mark, is_new=_OPENED not in self._journal)
        if self._sign(directory) and mark is not None:
            _leave_mark(mark)
        open_segments = [key.removeprefix("allocation/") for key in self._journal.keys("allocation/")]
        self.queue = ShipmentQueue(
            self._journal,
            RejectedFiles(directory / "rejected"),
            open_segments,
            max_bytes=max_bytes,
            max_bytes_in_memory=max_bytes_in_memory,
        )

    def _sign(self, directory: Path) -> bool:
        """Save the format and return whether it is on disk; raise NewerSpoolError if a newer one is saved."""
        written = self._journal.get(_FORMAT)  # None means that 0.1 wrote the spool in format 1
        match written:
            case {"format": int(number), "version": str(version)} if number > FORMAT:
                self._journal.close()
                raise NewerSpoolError(
                    f"{directory}: slurm-gpud {version} wrote this in format {number}, but slurm-gpud "
                    f"{__version__} supports formats up to {FORMAT}: install {version} or a later release "
                    "again, or move the directory away, together with the records waiting in it"
                )
        ours = {"format": FORMAT, "version": __version__}
        if written != ours:
            self._journal.put(_FORMAT, ours)
        if _OPENED not in self._journal:
            self._journal.put(_OPENED, True)
        return self._journal.commit()

    def commit(self) -> bool:
        """Write all changes to disk; return False on failure, for example if the disk is full.

        The records of running jobs and the ended runs are written last: an ended run must not precede its
        final records.
        """
        self.queue.keep_within_limits()
        return self._journal.commit(lambda key: key.startswith(_ENDED) or self.queue.gives_way(key))

    @property
    def is_whole(self) -> bool:
        """Return whether the spool contains all earlier data: it is not new, emptied or damaged."""
        return self._is_whole

    @property
    def size_bytes(self) -> int:
        """Return the size of all data in bytes."""
        return self._journal.size_bytes

    @property
    def failing(self) -> bool:
        """Return whether the last write failed."""
        return self._journal.failing

    def close(self) -> None:
        """Close the spool."""
        self._journal.close()

    # Allocations

    def allocations(self) -> list[Allocation]:
        """Return the allocations that were open when the spool was last written.

        Allocations that cannot be read are left out; their jobs are recorded again once Slurm reports them.
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
        """Save an open allocation."""
        self._journal.put(f"allocation/{allocation.key.segment}", allocation.to_json())
        self.queue.open_segment(allocation.key.segment)

    def drop_allocation(self, allocation: Allocation) -> None:
        """Remove an allocation that was closed or continues as another segment; ship its records."""
        segment = allocation.key.segment
        self._journal.remove(f"allocation/{segment}")
        self.queue.close_segment(segment)

    # Recently ended runs (slurm_gpu.node.jobs.ended_runs)

    def ended_runs(self) -> dict[int, Any]:
        """Return the saved end of each job's last run, as JSON."""
        jobs = {key: _JOB_ID.fullmatch(key.removeprefix(_ENDED)) for key in self._journal.keys(_ENDED)}
        return {int(job[0]): self._journal.get(key) for key, job in jobs.items() if job is not None}

    def save_ended_run(self, job_id: int, value: Mapping[str, Any]) -> None:
        """Save the end of a job's last run."""
        self._journal.put(f"{_ENDED}{job_id}", value)

    def drop_ended_run(self, job_id: int) -> None:
        """Remove the saved end of a job's last run, if there is one."""
        self._journal.remove(f"{_ENDED}{job_id}")

    # Clock offset (slurm_gpu.node.clock_step)

    def clock_offset(self) -> Offset | None:
        """Return the saved offset, or None if it is missing or cannot be read."""
        match self._journal.get(_CLOCK):
            case {"boot_id": str(boot_id), "ahead_s": int() | float() as ahead_s}:
                return Offset(boot_id, ahead_s)
        return None

    def save_clock_offset(self, offset: Offset) -> None:
        """Save the offset."""
        self._journal.put(_CLOCK, offset._asdict())

    # Records and events

    def save_record(self, record: Record) -> bytes:
        """Save the record of a segment on a device; return it as JSON."""
        return self.queue.put_record(f"record/{record.segment}/{record.device}", record)

    def save_host(self, host: Host) -> None:
        """Save the host record of a segment."""
        self.queue.put_record(f"host/{host.segment}", host)

    def last_record(self, segment: str, device: str) -> Record | None:
        """Return the newest saved record of the segment and device, without implausible fields."""
        wire = self._journal.get(f"record/{segment}/{device}")
        # Histogram keys are numbers in a record and strings in JSON; from_wire converts them.
        return None if wire is None else restored(Record.from_wire, wire)

    def last_host(self, segment: str) -> Host | None:
        """Return the segment's newest saved host record, or None if there is none or it cannot be read."""
        wire = self._journal.get(f"host/{segment}")
        try:
            return None if wire is None else restored(Host.from_wire, wire)
        except RecordError as error:
            log.error("the host record of %s in the spool cannot be read: %s", segment, error)  # noqa: TRY400
            return None

    def save_run(self, run: HostRun) -> None:
        """Save a run on a machine without Slurm; it is kept at least until it ends."""
        self.queue.put_run(f"run/{run.job_id}", run)

    def last_run(self, job_id: int) -> HostRun | None:
        """Return the newest saved version of a run, or None if there is none or it cannot be read."""
        wire = self._journal.get(f"run/{job_id}")
        try:
            return None if wire is None else HostRun.from_wire(wire)
        except RecordError as error:
            log.error("run %d in the spool cannot be read: %s", job_id, error)  # noqa: TRY400
            return None

    def next_job_id(self, first: int) -> int:
        """Return a new job ID on a machine without Slurm; `first` is the ID of the first job."""
        last = self._journal.get(_LAST_JOB_ID)
        job_id = last + 1 if is_count(last) else first
        self._journal.put(_LAST_JOB_ID, job_id)
        return job_id

    def save_event(self, event: Event) -> None:
        """Save an event until it is shipped."""
        self.queue.put_event(f"event/{event.n}", event)


def _was_lost(spool: Path, mark: Path, *, is_new: bool) -> bool:
    """Return whether the spool is new although its mark exists: the earlier spool was lost. Log the loss.

    If the spool is empty and there is no mark, the node is considered new. A loss cannot be detected if the
    mark was lost together with the spool, for example with the whole disk.
    """
    was_here = mark.exists()
    if is_new and was_here:
        log.error("%s: is missing or empty, but was not before: unsent records are lost", spool)
    elif is_new:
        log.info("%s: is new", spool)
    return is_new and was_here


def _leave_mark(mark: Path) -> None:
    """Create the mark; call this only once the spool is on disk.

    A mark without a spool counts as a loss of the spool, for example after slurm-gpud was killed.
    """
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch(0o600)
    except OSError as error:
        log.warning("%s: %s; a later loss of the spool will not be detected", mark, error.strerror)
