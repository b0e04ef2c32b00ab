"""A row of Slurm's accounting as a row of `run`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from slurm_gpu.database.match import node_set
from slurm_gpu.database.schema import NAME_LENGTH
from slurm_gpu.slurm.client import AccountingRun, SlurmNode

_GPU = "gres/gpu"
_SHARD = "gres/shard"
_MOST_KNOWN = 20_000


class RunRows:
    """Makes rows of `run`; `nodes` are those that slurmctld has now, to know shards and types of GPUs."""

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self._nodes = nodes
        self._known: dict[tuple[int, str], tuple[Mapping[str, float], int | None, str | None]] = {}

    def of(self, row: AccountingRun) -> dict[str, Any]:
        """The imported columns of `run`."""
        mgpu, kind = self._held(row.tres_allocated, row.nodes)
        return {
            "cluster": row.cluster,
            "job_id": row.job_id,
            "submit_s": row.submit_s,
            "sluid": row.sluid,
            "restart": row.restarts,
            "array_job_id": row.array_job_id,
            "array_task": row.array_task,
            "het_job_id": row.het_job_id,
            "het_offset": row.het_offset,
            "name": _text(row.name),
            "user": _short(row.user),
            "uid": row.uid,
            "account": _short(row.account),
            "qos": _short(row.qos),
            "partition": _text(row.partition),
            "state": row.state,
            "exit_code": row.exit_code,
            "eligible_s": row.eligible_s,
            "start_s": None if _never_started(row) else row.start_s,
            "end_s": row.end_s,
            "elapsed_s": row.elapsed_s,
            "suspended_s": row.suspended_s,
            "time_limit_s": row.time_limit_s,
            "n_nodes": row.n_nodes,
            "nodes": row.nodes,
            "tres_requested": row.tres_requested,
            "tres_allocated": row.tres_allocated,
            "admin_comment": _text(row.admin_comment),
            "allocated_mgpu": mgpu,
            "gpu_type": kind,
        }

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


def run_row(row: AccountingRun, nodes: Mapping[str, SlurmNode]) -> dict[str, Any]:
    """One row alone."""
    return RunRows(nodes).of(row)


def _never_started(row: AccountingRun) -> bool:
    """Of a job that ended in the queue, Slurm gives the moment of its end as its start, and no node."""
    return row.end_s is not None and row.elapsed_s == 0 and not row.nodes


def allocated_mgpu(tres: Mapping[str, float], hostlist: str, nodes: Mapping[str, SlurmNode]) -> int | None:
    """Thousandths of GPUs in an allocation; 0 where it holds none.

    None where it holds shards and its nodes do not agree on how many make a GPU, or are gone.
    """
    gpus, shards = _count(tres, _GPU), _count(tres, _SHARD)
    mgpu = round(gpus * 1000)
    if shards:
        per_gpu = {nodes[name].shards_per_gpu if name in nodes else None for name in node_set(hostlist)}
        whole = per_gpu.pop() if len(per_gpu) == 1 else None
        if whole is None:
            return None
        mgpu += round(shards * 1000 / whole)
    return mgpu


def gpu_type(tres: Mapping[str, float], hostlist: str, nodes: Mapping[str, SlurmNode]) -> str | None:
    """The types of GPU held, joined by commas; from the nodes where the allocation does not tell."""
    if not _count(tres, _GPU) and not _count(tres, _SHARD):
        return None
    types = {name.partition(":")[2] for name, count in tres.items() if name.startswith(f"{_GPU}:") and count}
    if not types:
        types = {kind for name in node_set(hostlist) if name in nodes for kind in nodes[name].gpus}
    return ",".join(sorted(types - {""}))[:NAME_LENGTH] or None


def _count(tres: Mapping[str, float], name: str) -> float:
    """A TRES total; where only types are accounted for, their sum."""
    if name in tres:
        return tres[name]
    return sum(count for key, count in tres.items() if key.startswith(f"{name}:"))


def _text(text: str) -> str:
    """What a database takes: users may name a job with bytes that are not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@functools.lru_cache(4096)
def _short(name: str) -> str:
    return _text(name)[:NAME_LENGTH]
