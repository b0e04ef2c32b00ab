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
    """Windows that somebody waits for: by job, the nodes that have not sent theirs."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._wanted: dict[int, tuple[float, set[str]]] = {}

    def ask(self, job_id: int, nodes: Iterable[str]) -> None:
        """Somebody waits for the windows of this job from these nodes."""
        with self._lock:
            self._drop_old()
            self._wanted[job_id] = self._clock.monotonic() + WANTED_FOR_S, set(nodes)

    def of(self, node: str) -> list[int]:
        """The jobs whose window this node is to send."""
        with self._lock:
            self._drop_old()
            return sorted(job_id for job_id, (_, nodes) in self._wanted.items() if node in nodes)

    def arrived(self, node: str, job_id: int) -> None:
        """The node has sent it."""
        with self._lock:
            if job_id in self._wanted:
                self._wanted[job_id][1].discard(node)

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        self._wanted = {job_id: item for job_id, item in self._wanted.items() if item[0] > now}
