"""Cache the nodes that slurmctld reports, so several callers can use the result of one poll."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.clock import Clock
from slurm_gpu.slurm.client import SlurmClient, SlurmNode


class NodeCache:
    """Caches the last response of slurmctld."""

    def __init__(self, client: SlurmClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._last: tuple[float, Sequence[SlurmNode]] | None = None

    def within(self, age_s: float) -> Sequence[SlurmNode]:
        """Return nodes polled at most `age_s` ago; raise SlurmError if slurmctld does not answer."""
        now = self._clock.monotonic()
        if self._last is None or now - self._last[0] >= age_s:
            self._last = now, self._client.nodes()
        return self._last[1]
