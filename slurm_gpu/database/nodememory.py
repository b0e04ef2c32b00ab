"""What slurm-gpudbd knows of nodes in memory only: their live values, and which windows are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from slurm_gpu.clock import Clock
from slurm_gpu.records import Live

LIVE_FOR_S = 60.0
"""Six shipments of live values: after that nobody knows."""
WANTED_FOR_S = 60.0
"""A window that is not asked for again within this time is not wanted any more."""


class LiveBoard:
    """The last values of each node, for LIVE_FOR_S from their arrival."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._values: dict[str, tuple[float, Live]] = {}

    def put(self, node: str, live: Live) -> None:
        """Values arrived; older ones than those that are there came late, and count for nothing."""
        with self._lock:
            self._drop_old()
            held = self._values.get(node)
            if held is None or live.at_s >= held[1].at_s:
                self._values[node] = self._clock.monotonic(), live

    def values(self) -> Mapping[str, Live]:
        """By node, in the order of names."""
        with self._lock:
            self._drop_old()
            return {node: live for node, (_, live) in sorted(self._values.items())}

    def _drop_old(self) -> None:
        oldest = self._clock.monotonic() - LIVE_FOR_S
        self._values = {node: held for node, held in self._values.items() if held[0] > oldest}


class Wants:
    """Jobs whose windows somebody waits for: each of their nodes is asked until it has sent its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._wanted: dict[int, tuple[float, set[str]]] = {}

    def ask(self, job_id: int) -> None:
        """Somebody waits for the windows of this job."""
        with self._lock:
            self._drop_old()
            _, sent = self._wanted.get(job_id, (0.0, set[str]()))
            self._wanted[job_id] = self._clock.monotonic() + WANTED_FOR_S, sent

    def of(self, node: str, job_ids: Iterable[int]) -> list[int]:
        """Those of the node's jobs whose window it is to send."""
        with self._lock:
            self._drop_old()
            wanted = self._wanted
            return sorted(
                {job_id for job_id in job_ids if job_id in wanted and node not in wanted[job_id][1]}
            )

    def arrived(self, node: str, job_id: int) -> None:
        """The node has sent it."""
        with self._lock:
            if job_id in self._wanted:
                self._wanted[job_id][1].add(node)

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        self._wanted = {job_id: item for job_id, item in self._wanted.items() if item[0] > now}
