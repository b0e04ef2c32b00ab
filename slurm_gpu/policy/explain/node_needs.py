"""Find requests for more GPUs, CPUs or memory on one node than any node has.

A need is the amount that at least one node of the job must have, regardless of which nodes Slurm chooses.
For example, a job with 5 GPUs on at most 2 nodes needs at least 3 GPUs on one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.policy.explain.gpu_options import gpu_count
from slurm_gpu.policy.explain.sbatch import SbatchRequest
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.job_desc import NO_VAL, NO_VAL16
from slurm_gpu.text.units import counted

_TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "nodes")


@dataclass(frozen=True, slots=True)
class _Need:
    """An amount on one node, and the options that determine it."""

    amount: int
    options: Sequence[str]


def unmet_needs(
    request: SbatchRequest,
    description: Mapping[str, object],
    nodes: Sequence[SlurmNode],
    requested: str,
    *,
    allocates_memory: bool,
) -> Iterator[str]:
    """Yield a message for each need that no node of `nodes` meets.

    `requested` names the partitions or the reservation of these nodes. Slurm multiplies memory per CPU or GPU
    by the number of CPUs or GPUs only if `allocates_memory` is true.
    """

    def number(name: str) -> int:
        value = description.get(name)
        return value if isinstance(value, int) and value not in (NO_VAL, NO_VAL16) else 0

    def unmet(
        needs: Sequence[_Need],
        of: Callable[[SlurmNode], int],
        shown: Callable[[int], str],
        eligible: Sequence[SlurmNode] = nodes,
    ) -> Iterator[str]:
        need, most = max(needs, key=lambda one: one.amount), max(map(of, eligible))
        if need.amount > most:
            options = [
                f"--{name}={request.options[name]}" for name in need.options if name in request.options
            ]
            which = requested if eligible is nodes else f"{requested} with {counted(gpus.amount, 'GPU')}"
            yield (
                f"{' '.join(options)}: {shown(need.amount)} needed on one node, but no node of {which} has "
                f"more than {shown(most)}"
            )

    most_nodes = min(len(nodes), number("max_nodes") or len(nodes))
    tasks = -(-number("num_tasks") // most_nodes) or 1
    sockets = number("sockets_per_node") or 1
    by_form = [
        _Need(gpu_count(description, "tres_per_node"), ("gres", "gpus-per-node")),
        _Need(-(-gpu_count(description, "tres_per_job") // most_nodes), ("gpus", "nodes")),
        _Need(gpu_count(description, "tres_per_task") * tasks, ("gpus-per-task", "tres-per-task", *_TASKS)),
        _Need(gpu_count(description, "tres_per_socket") * sockets, ("gpus-per-socket", "sockets-per-node")),
    ]
    gpus = max(by_form, key=lambda one: one.amount)
    with_gpus = [node for node in nodes if node.n_gpus >= gpus.amount]
    yield from unmet(by_form, lambda node: node.n_gpus, lambda n: counted(n, "GPU"))

    # Without --overcommit, Slurm requires the CPUs of --ntasks-per-node tasks on each node.
    per_node = min(number("ntasks_per_node"), number("num_tasks") or number("ntasks_per_node"))
    at_once = 1 if "overcommit" in request.options else max(tasks, per_node)
    cpus = [
        _Need(at_once * max(1, number("cpus_per_task")), ("cpus-per-task", *(_TASKS if at_once > 1 else ()))),
        _Need(number("pn_min_cpus"), ("mincpus",)),
    ]
    cpus_by_gpu = _Need(
        gpu_count(description, "cpus_per_tres") * gpus.amount, ("cpus-per-gpu", *gpus.options)
    )
    mib_by_gpu = _Need(
        gpu_count(description, "mem_per_tres") * (gpus.amount if allocates_memory else 1),
        ("mem-per-gpu", *gpus.options),
    )
    most_cpus = max(cpus, key=lambda one: one.amount)
    memory = [
        _Need(number("min_mem_per_node"), ("mem",)),
        _Need(
            number("min_mem_per_cpu") * (most_cpus.amount if allocates_memory else 1),
            ("mem-per-cpu", *most_cpus.options),
        ),
    ]
    for by_gpu, others, of, shown in (
        (cpus_by_gpu, cpus, lambda node: node.cpus, lambda n: counted(n, "CPU")),
        (mib_by_gpu, memory, lambda node: node.memory_mib, _memory),
    ):
        yield from unmet(others, of, shown)
        if gpus.amount and with_gpus:
            yield from unmet([by_gpu], of, shown, with_gpus)


def _memory(mib: int) -> str:
    """Return memory in the notation of sbatch, exact to one MiB."""
    amount, units = mib, "MGT"
    while amount and amount % 1024 == 0 and units != "T":
        amount, units = amount // 1024, units[1:]
    return f"{amount}{units[0]}"
