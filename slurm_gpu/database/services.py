"""Define the objects that request handlers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import Reservations
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.reconcile import DEFAULT_MIN_COVERAGE
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.http.rate_limits import CallerBounds
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.quota_board import QuotaBoard
from slurm_gpu.database.live.verdict_board import VerdictBoard
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.http.identity import Authenticator
from slurm_gpu.slurm.submission import UserAssociations, read_user_associations


@dataclass(frozen=True, slots=True)
class Services:
    """The objects shared by all requests for the lifetime of the daemon."""

    cluster: str
    database: Database
    authenticator: Authenticator
    importing: Importer
    view: SlurmView
    memory: LiveState
    quotas: QuotaBoard
    clock: Clock
    bounds: CallerBounds
    places: Places = field(default_factory=Places)
    min_coverage: float = DEFAULT_MIN_COVERAGE
    verdicts: VerdictBoard = field(default_factory=VerdictBoard)
    reservations: Reservations | None = None
    places_of: Callable[[str], UserAssociations] = read_user_associations
    """A function that runs sacctmgr; database.reservations.places.KeptPlaces caches its results."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when the server stops, to end long responses."""
