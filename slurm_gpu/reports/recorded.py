"""What else the database tells: of nodes, of records by node, and of the parts of resized runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Connection, select

from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.database.accounting.resized import Row, find_parts
from slurm_gpu.database.storage.schema import node_period, run, run_device
from slurm_gpu.reports.placing import NodePeriod
from slurm_gpu.reports.rows import RunColumns

T = TypeVar("T")
_IDS_PER_STATEMENT = 500


def read_periods(connection: Connection) -> list[NodePeriod]:
    """All that slurm-gpudbd ever saw of nodes."""
    query = select(
        node_period.c.node,
        node_period.c.from_s,
        node_period.c.server_type,
        node_period.c.zone,
        node_period.c.gpus,
        node_period.c.cpus,
        node_period.c.memory_mib,
        node_period.c.state,
    )
    return [NodePeriod(**row) for row in connection.execute(query).mappings()]


def recorded_mgpu(connection: Connection, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """By run_id, the GPU/1000 of the distinct devices on each node.

    Nothing of a run of which a device does not know how much of it was granted.
    """
    found: dict[int, dict[tuple[str, str], int | None]] = defaultdict(dict)
    for some in _lots(run_ids):
        query = select(
            run_device.c.run_id, run_device.c.node, run_device.c.device, run_device.c.granted_mgpu
        ).where(run_device.c.run_id.in_(some))
        for run_id, node, device, mgpu in connection.execute(query.order_by(run_device.c.row_id)):
            devices = found[run_id]
            if mgpu is not None or (node, device) not in devices:
                devices[node, device] = mgpu
    known: dict[int, dict[str, int]] = {}
    for run_id, devices in found.items():
        by_node: dict[str, int] = defaultdict(int)
        for (node, _), mgpu in devices.items():
            if mgpu is None:
                break
            by_node[node] += mgpu
        else:
            known[run_id] = by_node
    return known


def resized_parts(connection: Connection, rows: RunColumns) -> list[Sequence[Row]]:
    """The parts, in order of time, of those runs of which a row here is the last of several."""
    state = rows.texts["state"]
    if not state.is_(RESIZING).any():
        return []
    query = select(run.c.job_id).where(run.c.state == RESIZING).distinct()
    resized = {float(job_id) for job_id in connection.execute(query).scalars()}
    job_id, run_id = rows.numbers["job_id"], rows.integers("run_id").tolist()
    cluster = rows.texts["cluster"].texts()
    some = [
        {"run_id": run_id[i], "cluster": cluster[i], "job_id": int(job)}
        for i, job in enumerate(job_id.tolist())
        if job in resized
    ]
    return [parts for lot in _lots(some) for parts in find_parts(connection, lot).values() if len(parts) > 1]


def _lots(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _IDS_PER_STATEMENT):
        yield items[start : start + _IDS_PER_STATEMENT]
