"""Find data that nodes send only once and that the database lacks.

Data is missing if the database is new or was restored from a backup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sqlalchemy import Connection, func, select

from slurm_gpu.clock import Clock
from slurm_gpu.database.ingest.shipment import StoredClaim
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import device, run
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import HOST_CLUSTER

# Query results are cached for this time, because ten thousand nodes ask a thousand times per second.
READ_EACH_S = 30.0

T = TypeVar("T")


class StoredFacts:
    """Compares the data that nodes consider stored with the database. Thread-safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._devices = _Cached(database, clock, _devices)
        self._runs = _Cached(database, clock, _open_runs)

    def lacks(self, node: str, has: StoredClaim) -> list[str]:
        """Return the kinds of data that the node must send again; none if the database cannot be read."""
        found: list[str] = []
        if has.devices is not None:
            devices = self._devices.value()
            if devices is not None and devices.get(node) != has.devices:
                found.append("devices")
        if has.runs:
            runs = self._runs.value()
            cluster = HOST_CLUSTER + node
            if runs is not None and any(
                runs.get((cluster, job_id), -1) < seq for job_id, seq in has.runs.items()
            ):
                found.append("runs")
        return found


class _Cached(Generic[T]):
    """Caches the result of `read` for READ_EACH_S.

    The value is None after a failed read and during the first read.
    """

    def __init__(self, database: Database, clock: Clock, read: Callable[[Connection], T]) -> None:
        self._database, self._clock, self._read = database, clock, read
        self._lock = threading.Lock()
        self._until = 0.0
        self._value: T | None = None

    def value(self) -> T | None:
        if self._clock.monotonic() >= self._until and self._lock.acquire(blocking=False):
            try:
                with self._database.reading() as connection:
                    self._value = self._read(connection)
            except DatabaseError:  # storing logs the outage
                self._value = None
            finally:
                self._until = self._clock.monotonic() + READ_EACH_S
                self._lock.release()
        return self._value


def _devices(connection: Connection) -> Mapping[str, tuple[int, int]]:
    """Return, by node, the newest at_s of its devices and the number of devices with this at_s."""
    groups = select(device.c.node, device.c.at_s, func.count()).group_by(device.c.node, device.c.at_s)
    newest: dict[str, tuple[int, int]] = {}
    for node, at_s, n in connection.execute(groups):
        newest[node] = max(newest.get(node, (at_s, n)), (at_s, n))
    return newest


def _open_runs(connection: Connection) -> Mapping[tuple[str, int], int]:
    """Return the stored seq of each unfinished run on machines without Slurm, by cluster and job ID."""
    here = run.c.end_s.is_(None), run.c.cluster.startswith(HOST_CLUSTER, autoescape=True)
    found = connection.execute(select(run.c.cluster, run.c.job_id, run.c.reported_seq).where(*here))
    return {(cluster, job_id): seq for cluster, job_id, seq in found if seq is not None}
