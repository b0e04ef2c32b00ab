"""Store the cluster's usage by five minutes, and read it by longer bins."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, fields

from sqlalchemy import Connection, select

from slurm_gpu.database.storage.schema import cluster_usage
from slurm_gpu.database.storage.upsert import upsert
from slurm_gpu.database.usage.sample import UsageBin, UsageSample, mean_of
from slurm_gpu.wire.answers.usage import BINS_S, ClusterUsage

DAY_S = 86400
_VALUES = tuple(field.name for field in fields(UsageSample))


def store_bins(connection: Connection, cluster: str, bins: Iterable[UsageBin]) -> None:
    """Store the mean of each bin's samples; bins that are stored already are overwritten."""
    rows = [
        {
            "cluster": cluster,
            "from_s": one.from_s,
            "n_samples": len(one.samples),
            **asdict(one.mean()),
        }
        for one in bins
    ]
    names = ("n_samples", *_VALUES)
    connection.execute(upsert(connection, cluster_usage, ("cluster", "from_s"), names), rows)


def read_usage(connection: Connection, cluster: str, days: int, now_s: float) -> ClusterUsage:
    """Return the usage of the last `days` (a key of BINS_S); bins without samples are None."""
    width_s = BINS_S[days]
    last_s = int(now_s // width_s) * width_s
    first_s = last_s - days * DAY_S + width_s
    table = cluster_usage.c
    query = (
        select(table.from_s, table.n_samples, *(table[name] for name in _VALUES))
        .where(table.cluster == cluster, table.from_s >= first_s, table.from_s < last_s + width_s)
        .order_by(table.from_s)
    )
    bins: list[UsageSample | None] = [None] * (days * DAY_S // width_s)
    rows = connection.execute(query).mappings()
    for place, some in itertools.groupby(rows, lambda row: (row["from_s"] - first_s) // width_s):
        parts = [(row["n_samples"], UsageSample(**{name: row[name] for name in _VALUES})) for row in some]
        bins[place] = mean_of(parts)
    return ClusterUsage(
        from_s=first_s,
        bin_s=width_s,
        **{
            name: [None if sample is None else _short(getattr(sample, name)) for sample in bins]
            for name in _VALUES
        },
    )


def _short(value: float | None) -> float | None:
    """Round to a tenth, and return a whole number as int, which is shorter in JSON."""
    if value is None:
        return None
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded
