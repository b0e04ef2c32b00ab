"""Divide allocated GPU time between groups of nodes without a remainder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from slurm_gpu.reports.category import Category, Floats, Integers
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, Shares
from slurm_gpu.reports.placing import Group, Placing

# For each row, the thousandths of GPUs on each node, according to the row's records.
Weights = Mapping[int, Mapping[str, int]]


def share_out(
    placing: Placing,
    *,
    nodes: Category,
    at_s: Floats,
    mgpu_s: Integers,
    recorded: Callable[[Integers], Weights],
) -> tuple[Integers, Integers, Integers]:
    """Return the columns (row, group, mgpu·s) for all rows with an allocation, in the order of the rows.

    A row on nodes of several groups is divided in proportion to the GPUs in its records if the records cover
    all its nodes, otherwise evenly between its nodes. `recorded` returns the records; it is called only for
    rows on several groups.
    """
    allocated = np.flatnonzero(mgpu_s)
    place, compositions = placing.compositions(nodes.take(allocated), at_s[allocated])
    single = np.array([len(groups) == 1 for groups in compositions], np.bool_)
    group_of = np.array([next(iter(groups)) for groups in compositions], np.int64)
    alone = single[place] if len(allocated) else np.zeros(0, np.bool_)
    rows, groups, times = [allocated[alone]], [group_of[place[alone]]], [mgpu_s[allocated[alone]]]
    mixed = allocated[~alone]
    if len(mixed):
        weights = recorded(mixed)
        some: list[tuple[int, int, int]] = []
        for row, where in zip(mixed.tolist(), place[~alone].tolist(), strict=True):
            parts = _weighted(placing, float(at_s[row]), compositions[where], weights.get(row))
            some += [(row, group, part) for group, part in _divide(int(mgpu_s[row]), parts) if part]
        shared = np.array(some, np.int64).reshape(-1, 3)
        rows.append(shared[:, 0])
        groups.append(shared[:, 1])
        times.append(shared[:, 2])
    order = np.argsort(np.concatenate(rows), kind="stable")
    row, group, time = (np.concatenate(lots)[order] for lots in (rows, groups, times))
    return row, group, time


def _weighted(
    placing: Placing, at_s: float, by_nodes: Counter[int], recorded: Mapping[str, int] | None
) -> Mapping[int, int]:
    if not recorded or len(recorded) != by_nodes.total():
        return by_nodes
    by_records: Counter[int] = Counter()
    for node, mgpu in recorded.items():
        by_records[placing.group_at(node, at_s)] += mgpu
    return by_records if by_records.total() and by_records.keys() <= by_nodes.keys() else by_nodes


def _divide(amount: int, weights: Mapping[int, int]) -> list[tuple[int, int]]:
    """Divide the amount into integers in proportion to the weights; the integers add up to the amount."""
    total, upto, given = sum(weights.values()), 0, 0
    parts = []
    for group in sorted(weights):
        upto += weights[group]
        part = amount * upto // total - given
        parts.append((group, part))
        given += part
    return parts


def as_shares(
    groups: Sequence[Group],
    run: Integers,
    group: Integers,
    mgpu_s: Integers,
    rate: Callable[[str], float],
) -> Shares:
    """Return the shares by server type and zone; `rate` is the price of a GPU-hour of a server type."""
    by_group = Category([f"{server_type} {zone}" for server_type, zone in groups], group.astype(np.int32))
    server_type = by_group.renamed([server_type for server_type, _ in groups])
    rates = np.array([*map(rate, server_type.names), np.nan])
    return Shares(
        run=run,
        server_type=server_type,
        zone=by_group.renamed([zone for _, zone in groups]),
        mgpu_s=mgpu_s,
        charge=mgpu_s / MGPU_S_PER_GPU_H * rates[server_type.codes],
    )


def main_place(column: Category, run: Integers, mgpu_s: Integers, n_runs: int) -> Category:
    """Return, for each run, the name with most of its GPU time; UNKNOWN if none.

    Among names with equal GPU time, the first in alphabetical order is returned.
    """
    if not len(run):
        return Category(column.names, np.full(n_runs, -1, np.int32))
    width = len(column.names)
    keys, where = np.unique(run * width + column.codes, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, where, mgpu_s)
    rank = np.argsort(np.argsort(np.array(column.names)))
    of_run, code = keys // width, keys % width
    order = np.lexsort((-rank[code], sums, of_run))
    last = np.append(of_run[order][1:] != of_run[order][:-1], True)
    codes = np.full(n_runs, -1, np.int32)
    codes[of_run[order][last]] = code[order][last]
    return Category(column.names, codes)
