"""`slurm-gpu nodes`: show free resources and jobs by node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from slurm_gpu.cli.cluster.node_live import LIVE_COLUMNS, NodeLive, node_lives
from slurm_gpu.cli.cluster.suspects import show_suspects
from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import check_format, print_csv, print_json, print_sentences, print_table, remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.database.api.cluster import cluster_state
from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.summary import gpu_types, gpus_in_all, in_partition, wait_reasons
from slurm_gpu.slurm.occupancy import JobAllocation, NodeAllocations, occupancy
from slurm_gpu.text.cells import GAP, gpus, memory, positions, span, text
from slurm_gpu.text.hostlist import compress, expand
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.cluster import ClusterState

_COLUMNS = ("node", "state", "GPUs free", "shards", "CPUs", "memory", "used by")
_SPARE = ("shards", "memory", "CPUs", "state", "W now", "memory % now", "used by")
"""Columns to drop on a narrow terminal, in this order."""

_CSV_COLUMNS = (
    *("node", "state", "reason", "in_service", "partitions", "features", "gpu_types"),
    *("gpus", "gpus_allocated", "gpus_free", "shards", "shards_free", "cpus", "cpus_free"),
    *("memory_mib", "memory_free_mib", "jobs"),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[NODES]...")
@click.option("--partition", metavar="NAME", help="Only nodes in this partition.")
@click.option("--free", is_flag=True, help="Only nodes with at least one whole GPU free.")
@click.option("--live", is_flag=True, help="Include live values of the GPUs.")
@click.option(
    "--suspect", is_flag=True, help="Only GPUs that were diagnosed as slow or failing in several jobs."
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@with_site
def nodes(
    site: CommandSite,
    names: tuple[str, ...],
    *,
    partition: str | None,
    free: bool,
    live: bool,
    suspect: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """List nodes with free and total GPUs, shards, CPUs and memory, and the jobs on each GPU.

    NODES selects nodes, such as n1 or n[1-4,7].

    The lines below the table show the free GPUs of the cluster, and the reasons why jobs wait.

    GPUs are numbered as in Slurm. "(some shards)" and "(all shards)" state how many shards of a GPU a job
    has. A GPU with shards in use does not count as free, and neither do the resources of a node that accepts
    no jobs. The last pair of parentheses contains the time left for the job, or the job's state.

    --live prints the values of the GPUs in the driver's order. A dash stands for a GPU that was not measured
    or that runs a job of another user. A single dash for a node means that the node was not measured, or
    that the order of its GPUs is unknown.

    --suspect, for operators, lists the GPUs that were at fault in at least three jobs of at least two users,
    and the commands that drain their nodes.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    if live and as_csv:
        raise UsageError("--live and --csv are mutually exclusive; --json prints live values")
    if suspect:
        if names or partition is not None or free or live or as_csv:
            raise UsageError("--suspect can be combined only with --json")
        show_suspects(site, as_json=as_json)
        return
    now = _live(site) if live else None
    everything = site.slurm.nodes()
    partitions = sorted({name for node in everything for name in node.partitions})
    if partition is not None and partition not in partitions:
        raise UsageError(
            f"--partition {partition}: no node is in this partition; the partitions are "
            f"{', '.join(partitions)}"
        )
    wanted = _named(names, [node.name for node in everything])
    jobs = site.slurm.jobs()
    entries = [entry for entry in occupancy(everything, jobs) if entry.node.name in wanted]
    shown = [
        entry
        for entry in entries
        if (partition is None or partition in entry.node.partitions) and (not free or entry.gpus_free)
    ]
    if not shown:
        remark("no nodes match")
    now_s = site.wall()
    if as_json:
        live_values = {} if now is None else {name: {"live": item.to_json()} for name, item in now.items()}
        silent = {} if now is None else {"live": None}
        print_json({"nodes": [_to_json(entry) | live_values.get(entry.node.name, silent) for entry in shown]})
        return
    if as_csv:
        print_csv(_CSV_COLUMNS, (_to_csv(entry) for entry in shown))
        return
    if now is None:
        rows = [_row(entry, now_s) for entry in shown]
        print_table(_COLUMNS, rows, right=_COLUMNS[2:6], whole=("node",), spare=_SPARE)
    else:
        silent_cells = [GAP] * len(LIVE_COLUMNS)
        rows = []
        for entry in shown:
            row, node_live = _row(entry, now_s), now.get(entry.node.name)
            rows.append([*row[:3], *(silent_cells if node_live is None else node_live.cells()), row[-1]])
        columns = (*_COLUMNS[:3], *LIVE_COLUMNS, _COLUMNS[-1])
        print_table(columns, rows, right=("GPUs free",), lists=LIVE_COLUMNS, whole=("node",), spare=_SPARE)
    state = cluster_state(entries, jobs, now_s)
    print_sentences(_totals(state if partition is None else in_partition(state, partition), now_s))


def _named(names: Iterable[str], known: Sequence[str]) -> Collection[str]:
    """Return the requested nodes, or all nodes if no name is given."""
    try:
        wanted = {name for expression in names for name in expand(expression)}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if strange := sorted(wanted.difference(known)):
        raise UsageError(f"{compress(strange)}: no such node; the nodes are {compress(known)}")
    return wanted or known


def _totals(state: ClusterState, now_s: float) -> Iterator[str]:
    """Yield the free GPUs by type on all nodes, and the jobs that wait for GPUs."""
    for kind in gpu_types(state):
        parts = [f"{kind.free} of {kind.total} GPUs free"]
        if kind.out_of_service:
            parts.append(f"{kind.out_of_service} out of service")
        if not kind.free and kind.next_free_s is not None:
            parts.append(f"the next free in {span(max(0.0, kind.next_free_s - now_s))}")
        yield f"{text(kind.name) if kind.name else 'GPUs'}: {', '.join(parts)}"
    if waits := wait_reasons(state):
        n_jobs = sum(wait.n_jobs for wait in waits)
        n_gpus = gpus_in_all([wait.n_gpus for wait in waits])
        why = ", ".join(f"{wait.n_jobs} {text(wait.reason)}" for wait in waits)
        yield f"waiting: {counted(n_jobs, 'job')} for {gpus(n_gpus)} ({why})"


def _live(site: CommandSite) -> Mapping[str, NodeLive]:
    with site.database() as database:
        return node_lives(database.live(), database.nodes())


def _row(entry: NodeAllocations, now_s: float) -> list[str]:
    node = entry.node
    kinds = "/".join(kind for kind in node.gpus if kind)
    return [
        node.name,
        node.state if node.reason is None else f"{node.state}: {text(node.reason)}",
        f"{entry.gpus_free}/{node.n_gpus} {kinds}".rstrip() if node.n_gpus else "0/0",
        f"{entry.shards_free}/{node.shards}",
        f"{_cpus_free(entry)}/{node.cpus}",
        f"{memory(_memory_free(entry))}/{memory(node.memory_mib)}",
        "\n".join(_used_by(holder, now_s) for holder in entry.holders),
    ]


def _used_by(holder: JobAllocation, now_s: float) -> str:
    parts = [f"GPU {positions(holder.gpus)}"] if holder.gpus else []
    if holder.shared_gpus:
        how_much = "all shards" if holder.all_shards else "some shards"
        parts.append(f"GPU {positions(holder.shared_gpus)} ({how_much})")
    job = holder.job
    if job.state != "RUNNING":
        until = job.state.lower()  # a suspended or completing job has no remaining time
    else:
        until = "no limit" if job.end_s is None else span(max(0.0, job.end_s - now_s))
    return f"{', '.join(parts) or 'CPUs'} {text(job.user)} {job.label} ({until})"


def _to_json(entry: NodeAllocations) -> dict[str, Any]:
    node = entry.node
    return {
        "node": node.name,
        "state": node.state,
        "reason": node.reason,
        "in_service": entry.in_service,
        "partitions": list(node.partitions),
        "features": list(node.features),
        "gpus": dict(node.gpus),
        "gpus_allocated": dict(node.gpus_allocated),
        "gpus_free": entry.gpus_free,
        "shards": node.shards,
        "shards_free": entry.shards_free,
        "cpus": node.cpus,
        "cpus_free": _cpus_free(entry),
        "memory_mib": node.memory_mib,
        "memory_free_mib": _memory_free(entry),
        "jobs": [
            {
                "id": holder.job.label,
                "job_id": holder.job.job_id,
                "user": holder.job.user,
                "account": holder.job.account,
                "state": holder.job.state.lower(),
                "gpus": list(holder.gpus),
                "shared_gpus": list(holder.shared_gpus),
                "all_shards": holder.all_shards,
                "start_s": holder.job.start_s,
                "end_s": holder.job.end_s,
            }
            for holder in entry.holders
        ],
    }


def _to_csv(entry: NodeAllocations) -> dict[str, Any]:
    def joined(words: Iterable[str]) -> str:
        return " ".join(words)

    return _to_json(entry) | {
        "partitions": joined(entry.node.partitions),
        "gpu_types": joined(kind for kind in entry.node.gpus if kind),
        "features": joined(entry.node.features),
        "gpus": entry.node.n_gpus,
        "gpus_allocated": sum(entry.node.gpus_allocated.values()),
        "jobs": joined(holder.job.label for holder in entry.holders),
    }


def _cpus_free(entry: NodeAllocations) -> int:
    return max(0, entry.node.cpus - entry.node.cpus_allocated) if entry.in_service else 0


def _memory_free(entry: NodeAllocations) -> int:
    return max(0, entry.node.memory_mib - entry.node.memory_allocated_mib) if entry.in_service else 0
