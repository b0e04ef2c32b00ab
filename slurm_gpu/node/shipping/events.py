"""Record numbered events of this node with their time, and keep them until they are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import Event


class EventRecorder:
    """Writes events to the spool; `node` is the node's name in Slurm."""

    def __init__(self, node: str, clock: Clock, spool: Spool) -> None:
        self._node, self._clock, self._spool = node, clock, spool
        self._last_n = 0

    def record(
        self,
        kind: str,
        *,
        device: str | None = None,
        job_id: int | None = None,
        at_s: float | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an event that happened at wall-clock time `at_s`, or now."""
        now_s = self._clock.wall()
        # The number is the time in µs, so that it is unique even if the spool was lost.
        self._last_n = max(self._last_n + 1, int(now_s * 1e6))
        self._spool.save_event(
            Event(
                node=self._node,
                boot_id=self._clock.boot_id(),
                n=self._last_n,
                at_s=int(now_s if at_s is None else at_s),
                kind=kind,
                device=device,
                job_id=job_id,
                data={} if data is None else data,
            )
        )
