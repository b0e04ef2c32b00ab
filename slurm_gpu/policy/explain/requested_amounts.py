"""Compute the requested amounts of a job description that do not depend on the nodes."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.policy.explain.gpu_options import requested_gpus
from slurm_gpu.slurm.job_desc import INFINITE, NO_VAL, NO_VAL16


def requested_amounts(description: Mapping[str, object]) -> dict[str, int | None]:
    """Return the GPUs, nodes, cores and memory in MiB; memory is None if not requested."""
    nodes, gpus = set_number(description, "min_nodes") or 1, requested_gpus(description)
    cores = _cores(description, gpus)
    memory = _memory_mib(description, nodes, cores, gpus)
    return {"gpus": gpus, "nodes": nodes, "cores": cores, "memory_mib": memory}


def set_number(description: Mapping[str, object], name: str) -> int | None:
    """Return the number in a field; None if the field is not set or unlimited."""
    value = description.get(name)
    return value if isinstance(value, int) and value not in (NO_VAL, NO_VAL16, INFINITE) else None


def _cores(description: Mapping[str, object], gpus: int) -> int:
    if per_gpu := _per_gpu(description.get("cpus_per_tres")):
        return per_gpu * max(gpus, 1)
    per_task, tasks = set_number(description, "cpus_per_task"), set_number(description, "num_tasks")
    cores = (1 if per_task is None else per_task) * (1 if tasks is None else tasks)
    return max(cores, set_number(description, "min_cpus") or 1)


def _memory_mib(description: Mapping[str, object], nodes: int, cores: int, gpus: int) -> int | None:
    if per_gpu := _per_gpu(description.get("mem_per_tres")):
        return per_gpu * max(gpus, 1)
    if (per_core := set_number(description, "min_mem_per_cpu")) is not None:
        return per_core * cores
    per_node = set_number(description, "min_mem_per_node")
    return None if per_node is None else per_node * nodes


def _per_gpu(value: object) -> int:
    """Return the amount per GPU, such as 4 for "gres/gpu:4"; 0 if it is not set."""
    return int(value.rpartition(":")[2]) if isinstance(value, str) else 0
