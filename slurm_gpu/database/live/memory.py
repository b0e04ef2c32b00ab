"""Define the state of nodes that slurm-gpudbd keeps only in memory."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.database.live.arrivals import Arrivals
from slurm_gpu.database.live.live_needs import LiveNeeds
from slurm_gpu.database.live.node_memory import LiveBoard, WindowRequests
from slurm_gpu.database.live.rejections import Rejections


@dataclass(frozen=True, slots=True)
class LiveState:
    """One store of each kind; the stores in a worker process forward their data to the main process."""

    board: LiveBoard
    wants: WindowRequests
    arrivals: Arrivals
    rejections: Rejections
    needs: LiveNeeds

    @classmethod
    def fresh(cls, clock: Clock) -> LiveState:
        """Return empty stores."""
        return cls(
            LiveBoard(clock), WindowRequests(clock), Arrivals(clock), Rejections(clock), LiveNeeds(clock)
        )
