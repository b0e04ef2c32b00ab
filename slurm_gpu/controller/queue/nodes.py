"""The nodes of slurmctld, asked for once for all who need them."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.clock import Clock
from slurm_gpu.slurm.client import SlurmClient, SlurmNode


class NodeCache:
    """The last answer, for as long as it is new enough."""

    def __init__(self, client: SlurmClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._last: tuple[float, Sequence[SlurmNode]] | None = None

    def within(self, age_s: float) -> Sequence[SlurmNode]:
        """Nodes as they were at most so long ago; raises SlurmError where nobody answers."""
        now = self._clock.monotonic()
        if self._last is None or now - self._last[0] >= age_s:
            self._last = now, self._client.nodes()
        return self._last[1]
