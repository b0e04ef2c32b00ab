"""A row of Slurm's accounting as a row of `run`."""

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
    """Makes rows of `run`; `nodes` are those that slurmctld has now, to know shards and types of GPUs."""

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self._nodes, self._per_gpu = nodes, agreed_per_gpu(nodes.values())
        self._is_accounted = not any(node.unaccounted for node in nodes.values())
        self._known: dict[tuple[int, str], tuple[Mapping[str, float], int | None, str | None]] = {}

    def of(self, runs: Sequence[AccountingRun]) -> list[AccountingRun]:
        """Return the runs as they are stored.

        By columns: a call for each value would take the most of the time.
        """
        if not runs:
            return []
        fields = AccountingRun._fields
        told: dict[str, Sequence[Any]] = dict(zip(fields, zip(*runs, strict=True), strict=True))
        held = list(map(self._held, told["tres_allocated"], told["nodes"]))
        columns = told | {
            "name": _texts(told["name"]),
            "user": list(map(_short, told["user"])),
            "account": list(map(_short, told["account"])),
            "qos": list(map(_short, told["qos"])),
            "partition": _texts(told["partition"]),
            "start_s": list(map(_start_s, told["start_s"], told["end_s"], told["elapsed_s"], told["nodes"])),
            "admin_comment": _texts(told["admin_comment"]),
            "allocated_mgpu": [mgpu for mgpu, _ in held],
            "gpu_type": [kind for _, kind in held],
            "requested_mgpu": list(map(self._requested, told["tres_requested"])),
        }
        return list(map(AccountingRun._make, zip(*(columns[name] for name in fields), strict=True)))

    def _requested(self, tres: Mapping[str, float]) -> int | None:
        """Return requested_mgpu of a job for any node; None if accounting does not show the request."""
        return count_mgpu(tres, self._per_gpu, is_accounted=bool(tres) and self._is_accounted)

    def _held(self, tres: Mapping[str, float], hostlist: str) -> tuple[int | None, str | None]:
        """allocated_mgpu and gpu_type; sacct's rows have the same mapping where they have the same text."""
        key = id(tres), hostlist
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            mgpu, kind = allocated_mgpu(tres, hostlist, self._nodes), gpu_type(tres, hostlist, self._nodes)
            # With the mapping itself: as long as it is here, no other has its id.
            self._known[key] = found = tres, mgpu, kind
        return found[1:]


def run_row(run: AccountingRun, nodes: Mapping[str, SlurmNode]) -> AccountingRun:
    """One row alone."""
    (row,) = RunRows(nodes).of([run])
    return row


def _start_s(start_s: int | None, end_s: int | None, elapsed_s: int | None, nodes: str) -> int | None:
    """Of a job that ended in the queue, Slurm gives the moment of its end as its start, and no node."""
    return start_s if nodes or elapsed_s or end_s is None else None


def allocated_mgpu(tres: Mapping[str, float], hostlist: str, nodes: Mapping[str, SlurmNode]) -> int | None:
    """Return the thousandths of GPUs in an allocation; 0 where it has none.

    None where it has shards or MPS and its nodes differ in how many make a GPU, or are gone; and where it has
    no GPU, but its nodes have some that Slurm does not account for, or its TRES is empty, as it never is.
    """
    if not hostlist:
        return count_mgpu(tres)
    here = [nodes.get(name) for name in node_set(hostlist)]
    # A node that is gone was configured like the others.
    asked = nodes.values() if None in here else here
    is_accounted = bool(tres) and not any(node.unaccounted for node in asked if node is not None)
    return count_mgpu(tres, per_gpu_of(here), is_accounted=is_accounted)


def gpu_type(tres: Mapping[str, float], hostlist: str, nodes: Mapping[str, SlurmNode]) -> str | None:
    """The types of GPU held, joined by commas; from the nodes where the allocation does not tell."""
    if not uses_gpus(tres):
        return None
    types = {name.partition(":")[2] for name, count in tres.items() if name.startswith("gres/gpu:") and count}
    if not types:
        types = {kind for name in node_set(hostlist) if name in nodes for kind in nodes[name].gpus}
    return ",".join(sorted(types - {""}))[:NAME_LENGTH] or None


def _text(text: str) -> str:
    """What a database takes: users may name a job with bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _texts(column: Sequence[str]) -> Sequence[str]:
    return column if "".join(column).isascii() else list(map(_text, column))


@functools.lru_cache(4096)
def _short(name: str) -> str:
    return _text(name)[:NAME_LENGTH]
