"""Open connections to slurm-gpudbd for daemons that rarely need one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from slurm_gpu.config.site import SiteConfig

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatabaseConnector:
    """Opens a new connection to the site's slurm-gpudbd for each call."""

    config: SiteConfig

    def __call__(self, use: Callable[[DatabaseClient], T]) -> T:
        """Call `use` with a new connection, and return its result."""
        # Imported here to save memory: on many sites, slurm-gpuctld never needs httpx.
        from slurm_gpu.client.database_client import DatabaseClient

        with DatabaseClient(self.config) as database:
            return use(database)
