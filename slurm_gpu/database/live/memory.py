"""All that slurm-gpudbd keeps in memory of what nodes ship, and loses when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.database.live.arrivals import Arrivals
from slurm_gpu.database.live.live_needs import LiveNeeds
from slurm_gpu.database.live.node_memory import LiveBoard, Wants
from slurm_gpu.database.live.rejections import Rejections


@dataclass(frozen=True, slots=True)
class LiveState:
    """One of each; in a worker, what tells slurm-gpudbd instead."""

    board: LiveBoard
    wants: Wants
    arrivals: Arrivals
    rejections: Rejections
    needs: LiveNeeds

    @classmethod
    def fresh(cls, clock: Clock) -> LiveState:
        """Without anything in it."""
        return cls(LiveBoard(clock), Wants(clock), Arrivals(clock), Rejections(clock), LiveNeeds(clock))
