"""Convert rows of Slurm's accounting into rows of `run`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.storage.schema import NAME_LENGTH
from slurm_gpu.slurm.client import AccountingRun, SlurmNode
from slurm_gpu.slurm.gpu_count import agreed_per_gpu, per_gpu_of
from slurm_gpu.slurm.tres import count_mgpu, uses_gpus

_MOST_KNOWN = 20_000


class RunRows:
    """Converts rows; slurmctld's current `nodes` provide GPU types and the number of shards per GPU."""

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self._nodes, self._per_gpu = nodes, agreed_per_gpu(nodes.values())
        self._is_accounted = not any(node.unaccounted for node in nodes.values())
        self._known: dict[tuple[int, str], tuple[Mapping[str, float], int | None, str | None]] = {}

    def of(self, runs: Sequence[AccountingRun]) -> list[AccountingRun]:
        """Return the runs in the form in which they are stored.

        Runs are converted column by column, since a call for each value would take most of the time.
        """
        if not runs:
            return []
        fields = AccountingRun._fields
        given: dict[str, Sequence[Any]] = dict(zip(fields, zip(*runs, strict=True), strict=True))
        allocations = list(map(self._allocation, given["tres_allocated"], given["nodes"]))
        columns = given | {
            "name": _texts(given["name"]),
            "user": list(map(_short, given["user"])),
            "account": list(map(_short, given["account"])),
            "qos": list(map(_short, given["qos"])),
            "partition": _texts(given["partition"]),
            "start_s": list(
                map(_start_s, given["start_s"], given["end_s"], given["elapsed_s"], given["nodes"])
            ),
            "admin_comment": _texts(given["admin_comment"]),
            "allocated_mgpu": [mgpu for mgpu, _ in allocations],
            "gpu_type": [kind for _, kind in allocations],
            "requested_mgpu": list(map(self._requested, given["tres_requested"])),
        }
        return list(map(AccountingRun._make, zip(*(columns[name] for name in fields), strict=True)))

    def _requested(self, tres: Mapping[str, float]) -> int | None:
        """Return requested_mgpu of a job, independent of its nodes; None if accounting lacks the request."""
        return count_mgpu(tres, self._per_gpu, is_accounted=bool(tres) and self._is_accounted)

    def _allocation(self, tres: Mapping[str, float], hostlist: str) -> tuple[int | None, str | None]:
        """Return allocated_mgpu and gpu_type.

        The result is cached by the identity of `tres`, since rows with equal TRES text share one mapping.
        """
        key = id(tres), hostlist
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            mgpu, kind = allocated_mgpu(tres, hostlist, self._nodes), gpu_type(tres, hostlist, self._nodes)
            # Keep the mapping alive; otherwise, another object could get its id.
            self._known[key] = found = tres, mgpu, kind
        return found[1:]


def run_row(run: AccountingRun, nodes: Mapping[str, SlurmNode]) -> AccountingRun:
    """Convert a single row."""
    (row,) = RunRows(nodes).of([run])
    return row


def _start_s(start_s: int | None, end_s: int | None, elapsed_s: int | None, nodes: str) -> int | None:
    """Return the start, or None for a job that ended in the queue.

    Slurm sets the start time of a job that ended in the queue to its end time, and lists no node.
    """
    return start_s if nodes or elapsed_s or end_s is None else None


def allocated_mgpu(tres: Mapping[str, float], hostlist: str, nodes: Mapping[str, SlurmNode]) -> int | None:
    """Return the number of GPUs of an allocation in thousandths, or None if the number is unknown.

    The number is unknown if the allocation has shards or MPS, and its nodes differ in shares per GPU or no
    longer exist. The number is also unknown if the allocation has no GPU but its nodes have GPUs that Slurm
    does not account for, or if its TRES is unexpectedly empty.
    """
    if not hostlist:
        return count_mgpu(tres)
    here = [nodes.get(name) for name in node_set(hostlist)]
    # A node that no longer exists is assumed to have had the configuration of the run's other nodes.
    asked = nodes.values() if None in here else here
    is_accounted = bool(tres) and not any(node.unaccounted for node in asked if node is not None)
    return count_mgpu(tres, per_gpu_of(here), is_accounted=is_accounted)


def gpu_type(tres: Mapping[str, float], hostlist: str, nodes: Mapping[str, SlurmNode]) -> str | None:
    """Return the allocated GPU types joined by commas, or the types of its nodes if TRES has no type."""
    if not uses_gpus(tres):
        return None
    types = {name.partition(":")[2] for name, count in tres.items() if name.startswith("gres/gpu:") and count}
    if not types:
        types = {kind for name in node_set(hostlist) if name in nodes for kind in nodes[name].gpus}
    return ",".join(sorted(types - {""}))[:NAME_LENGTH] or None


def _text(text: str) -> str:
    """Replace characters that a database refuses, since job names may contain bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _texts(column: Sequence[str]) -> Sequence[str]:
    return column if "".join(column).isascii() else list(map(_text, column))


@functools.lru_cache(4096)
def _short(name: str) -> str:
    return _text(name)[:NAME_LENGTH]
