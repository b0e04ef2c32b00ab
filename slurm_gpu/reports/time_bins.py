"""Integrate amounts over time bins."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_gpu.reports.category import Floats, Integers


def integrals(
    from_s: Integers, to_s: Integers, amounts: Mapping[str, Integers], edges_s: Floats
) -> dict[str, Integers]:
    """Return the exact sum of amount × seconds of the spans within each bin, for each kind of amount."""
    base = int(edges_s[0])
    edges = edges_s.astype(np.int64) - base
    upto = {name: np.zeros(len(edges), np.int64) for name in amounts}
    for moments, sign in ((from_s, 1), (to_s, -1)):
        at = np.clip(moments - base, 0, edges[-1])
        bins = np.searchsorted(edges, at)  # the first edge at or after the moment
        for name, amount in amounts.items():
            begun, weighted = np.zeros(len(edges), np.int64), np.zeros(len(edges), np.int64)
            np.add.at(begun, bins, amount)
            np.add.at(weighted, bins, amount * at)
            upto[name] += sign * (edges * np.cumsum(begun) - np.cumsum(weighted))
    return {name: np.diff(values) for name, values in upto.items()}
