"""The answer to GET /v1/usage; docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

# The length of a bin in seconds, by the number of days of an answer.
BINS_S: Mapping[int, int] = {1: 300, 7: 1800, 30: 7200}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUsage:
    """The mean numbers of GPUs in consecutive bins of `bin_s` seconds from `from_s`; None without data."""

    from_s: int
    bin_s: int
    gpus: Sequence[float | None]
    """GPUs of nodes in service, and allocated GPUs of other nodes."""
    allocated: Sequence[float | None]
    busy: Sequence[float | None]
    """Allocated GPUs × their mean utilisation; None if too few were measured, or not visible."""
    waiting_jobs: Sequence[float | None]
    waiting_gpus: Sequence[float | None]

    def without_utilisation(self) -> ClusterUsage:
        """Return the part that every user may see."""
        return replace(self, busy=[None] * len(self.busy))
