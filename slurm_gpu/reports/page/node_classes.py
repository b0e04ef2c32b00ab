"""Define classes of runs by number of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.reports.category import Floats


@dataclass(frozen=True, slots=True)
class NodeClass:
    """A class of runs; `least` is its smallest number of nodes."""

    least: int
    label: str


NODE_CLASSES = (
    NodeClass(1, "1 node"),
    NodeClass(2, "2 nodes"),
    NodeClass(3, "3–4"),
    NodeClass(5, "5–8"),
    NodeClass(9, "9–16"),
    NodeClass(17, "17 or more"),
)


def node_class(n_nodes: Floats) -> NDArray[np.intp]:
    """Return the index of each run's class in NODE_CLASSES; 0 for runs without nodes."""
    edges = np.array([each.least for each in NODE_CLASSES[1:]], np.float64)
    return np.searchsorted(edges, np.nan_to_num(n_nodes, nan=1.0), side="right")
