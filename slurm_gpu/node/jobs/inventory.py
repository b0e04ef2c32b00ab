"""Track which GPUs of this node answer, and which GPU is at each of Slurm's positions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.gpu.reading import DeviceProperties, Reader, ReadError, ReaderStartingError
from slurm_gpu.node.shipping.events import EventRecorder

log = logging.getLogger(__name__)

# Maximum number of remembered reports of lost GPUs; each loss is reported only once.
_REMEMBERED = 1000
EVENT_OF = {ReadError.LOST: "gpu_lost", ReadError.HUNG: "gpu_hung"}


class DeviceOrder(Protocol):
    """Finds the UUID of the device at each position. slurmd may take some time to answer a query.

    `assumed` is true if the last answer was a guess; `can_be_shared` is true if several jobs can share a GPU.
    """

    assumed: bool
    can_be_shared: bool

    @property
    def is_asking(self) -> bool:
        """Return whether a query is running."""

    @property
    def is_silent(self) -> bool:
        """Return whether the last query failed or the current one is taking too long."""

    def ask(self) -> None:
        """Query the order now and wait briefly for the answer."""

    def news(self) -> bool:
        """Return whether there has been a new answer since the last call."""

    def uuids(self, positions: Sequence[int], devices: Sequence[DeviceProperties]) -> Mapping[int, str]:
        """Return UUIDs by position; positions without a match in `devices` are absent."""


class Inventory:
    """The devices found by the reader; `answering` maps UUIDs to properties, in the driver's order."""

    def __init__(self, reader: Reader, order: DeviceOrder, events: EventRecorder) -> None:
        self._reader, self._order, self._events = reader, order, events
        self.answering: Mapping[str, DeviceProperties] = {}
        self.starting = False
        self._seen: dict[str, DeviceProperties] = {}
        self._no_driver = False
        self._assumed_reported = False
        self._silence_reported: set[int] = set()
        # NVML's indices of GPUs that have answered, and of GPUs reported because they have never answered.
        self._named: set[int] = set()
        self._unnamed: set[int] = set()
        # GPUs that were reported as lost, by job, restart count, and name of the device.
        self._lost: dict[tuple[int, int, str], None] = {}
        self._has_found = False

    def find(self) -> bool:
        """Search for devices; if there is no driver, return False and keep the known devices.

        `starting` is set if the driver is still starting.
        """
        self.starting = False
        try:
            found = self._reader.devices()
        except ReaderStartingError as error:
            log.info("%s", error)
            self.starting = True
            return False
        except NvmlError as error:
            if not self._no_driver:
                log.warning("%s; allocations are recorded without samples until a driver is available", error)
            self._no_driver = True
            return False
        if self._no_driver:
            log.warning("NVML answers now")
        self._no_driver = False
        self.answering = {facts.uuid: facts for facts in found}
        minors = {facts.minor for facts in found}
        # Keep the properties of a lost or hung GPU, unless another GPU has its minor number.
        silent = {uuid: facts for uuid, facts in self._seen.items() if facts.minor not in minors}
        self._seen = {**silent, **self.answering}
        self._has_found = True
        self._report_unnamed()
        return True

    @property
    def has_unnamed(self) -> bool:
        """Return whether NVML lists a GPU that has never answered."""
        return bool(self._unnamed)

    def _report_unnamed(self) -> None:
        """Report GPUs that have never answered, by NVML's index, because their UUIDs are unknown."""
        for uuid, facts in self.answering.items():
            if facts.index in self._unnamed and facts.parent is None:
                self._unnamed.discard(facts.index)
                self._events.record("gpu_back", device=uuid, data={"index": facts.index})
            self._named.add(facts.index)
        for index, failure in self._reader.silent.items():
            if index not in self._named and index not in self._unnamed:
                self._unnamed.add(index)
                log.error("GPU with NVML index %d %s: %s", index, failure.kind, failure.why)
                self._events.record(EVENT_OF[failure.kind], data={"index": index})

    def ask_slurm(self) -> None:
        """Query the order of positions now, so that the first job does not have to wait for it."""
        if self._seen:
            self._order.ask()

    def news(self) -> bool:
        """Return whether slurmd has answered since the last call."""
        return self._order.news()

    @property
    def is_asking(self) -> bool:
        """Return whether a query for Slurm's order is running."""
        return self._order.is_asking

    @property
    def can_be_shared(self) -> bool:
        """Return whether several jobs can share one GPU."""
        return self._order.can_be_shared

    def knows(self, allocation: Allocation) -> bool:
        """Return whether all devices of the allocation are known and answer."""
        if len(allocation.devices) < len(allocation.positions):
            return False
        return all(map(self.answering.__contains__, allocation.devices.values()))

    def resolve(self, allocation: Allocation) -> Allocation:
        """Return the allocation with newly known devices added, or the same object if there are none."""
        unknown = [p for p in allocation.positions if p not in allocation.devices]
        if not unknown:
            return allocation
        if not self._seen:
            # If no GPU has ever answered, report each position.
            for position in unknown if self._unnamed or self._no_driver else ():
                self.report_lost(allocation, allocation.device_name(position))
            return allocation
        found = self._order.uuids(unknown, list(self._seen.values()))
        if self._order.assumed and not self._assumed_reported:
            self._assumed_reported = True
            log.warning("slurmd -G lists no GPU files; positions are assumed to follow minor numbers")
            self._events.record("gres_order_assumed")
        if self._order.assumed and self._unnamed:
            return allocation  # the minor numbers of some GPUs are not known
        if not self._order.is_silent:
            self._silence_reported.clear()
        elif len(found) < len(unknown) and allocation.key.job_id not in self._silence_reported:
            self._silence_reported.add(allocation.key.job_id)
            self._events.record("gres_order_unknown", job_id=allocation.key.job_id)
        for position in unknown:
            name = allocation.device_name(position)
            if position in found:
                self.report_back(allocation, name, found[position])
            elif not self._order.is_silent and not self._order.is_asking:
                self.report_lost(allocation, name)
        return replace(allocation, devices={**allocation.devices, **found}) if found else allocation

    def report_lost(self, allocation: Allocation, name: str) -> None:
        """Report once that a job's GPU does not answer; `name` is its UUID or position."""
        key = allocation.key
        lost = key.job_id, key.restart, name
        if not (self._has_found or self._no_driver) or lost in self._lost:
            return
        if len(self._lost) >= _REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self._lost[lost] = None
        facts = self._seen.get(name)
        failure = None if facts is None else self._reader.silent.get(facts.index)
        kind = EVENT_OF[ReadError.LOST if failure is None else failure.kind]
        log.error("job %d was allocated GPU %s, which does not answer", key.job_id, name)
        self._events.record(kind, device=name, job_id=key.job_id)

    def report_back(self, allocation: Allocation, name: str, uuid: str) -> None:
        """If a GPU was reported as lost under that name, report that it answers again."""
        lost = allocation.key.job_id, allocation.key.restart, name
        if lost in self._lost:
            del self._lost[lost]
            self._events.record("gpu_back", device=uuid, job_id=lost[0])

    def reported_back(self, uuid: str) -> None:
        """Record that the return of a GPU has been reported for all of its jobs."""
        self._lost = {lost: None for lost in self._lost if lost[2] != uuid}
