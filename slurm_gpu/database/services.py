"""All that requests are answered with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_gpu.clock import Clock
from slurm_gpu.config import Reservations
from slurm_gpu.database.arrivals import Arrivals
from slurm_gpu.database.engine import Database
from slurm_gpu.database.identity import Authenticator
from slurm_gpu.database.importer import Importer
from slurm_gpu.database.intake import Intake
from slurm_gpu.database.nodememory import LiveBoard, Wants
from slurm_gpu.database.nodeperiods import Places
from slurm_gpu.database.slurmview import SlurmView
from slurm_gpu.slurm.submission import UserPlaces, read_user_places


@dataclass(frozen=True, slots=True)
class Services:
    """One of each, for as long as the daemon lives."""

    cluster: str
    database: Database
    authenticator: Authenticator
    intake: Intake
    importer: Importer
    view: SlurmView
    arrivals: Arrivals
    board: LiveBoard
    wants: Wants
    clock: Clock
    places: Places = field(default_factory=Places)
    reservations: Reservations | None = None
    places_of: Callable[[str], UserPlaces] = read_user_places
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: answers that go on for long end then."""
