"""Whether slurm.conf is written as slurm-gpu needs it, as slurmctld has read it."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_gpu.cli.checks.finding import Finding, Surroundings, fail, ok, skipped, warn
from slurm_gpu.units import counted

_HOOK = "slurm-gpu"
"""Part of the file names of our hooks, prolog/10-slurm-gpu and epilog/10-slurm-gpu."""
_INSTANCE = re.compile(r"(^|_)[1-9]g\.[0-9]+gb")
_SPLITS_INSTANCES = "22.05."
"""The versions of Slurm of which that was measured."""


def answers(at: Surroundings) -> Iterator[Finding]:
    """The controller answers."""
    at.site.slurm.ping()
    settings = at.settings
    n_gpus = sum(node.n_gpus for node in at.nodes)
    yield ok(f"Slurm {settings.version}, {counted(len(at.nodes), 'node')}, {counted(n_gpus, 'GPU')}")


def hooks(at: Surroundings) -> Iterator[Finding]:
    """Prolog and Epilog run ours; every file that they name can be run, else Slurm drains nodes."""
    for kind in ("Prolog", "Epilog"):
        patterns, directory = _values(at.settings.raw, kind), f"/etc/slurm/{kind.lower()}.d"
        if not patterns:
            yield fail(
                f"slurm.conf has no {kind}: jobs leave no GPU records",
                f"our hook into {directory}, and {kind}={directory}/* in slurm.conf",
            )
        elif not at.is_gpu_node:
            yield skipped(f"{kind}={','.join(patterns)} lies on GPU nodes, and this host is none")
        else:
            yield from _hook_files(kind, patterns)


def prolog_flags(at: Surroundings) -> Iterator[Finding]:
    """The prolog runs on every node of a job, at once."""
    flags = set(at.settings.raw.get("PrologFlags", "").split(","))
    if flags & {"Alloc", "Contain"}:
        yield ok(f"PrologFlags={','.join(sorted(flags))}")
    else:
        yield fail(
            "PrologFlags has neither Alloc nor Contain: of a multi-node job only the first node has a prolog",
            "PrologFlags=Alloc in slurm.conf; scontrol reconfigure",
        )


def gpus_accounted(at: Surroundings) -> Iterator[Finding]:
    """Slurm's accounting counts GPUs."""
    raw = at.settings.raw
    if raw.get("AccountingStorageType", "").rpartition("/")[2] in ("", "none"):
        yield fail(
            "there is no accounting storage: runs cannot be imported",
            "set up slurmdbd, AccountingStorageType=accounting_storage/slurmdbd in slurm.conf",
        )
        return
    tracked = raw.get("AccountingStorageTRES", "").split(",")
    lacking = [name for name in ("gres/gpu", "gres/shard") if name not in tracked and _has(at, name)]
    if lacking:
        yield fail(
            f"AccountingStorageTRES lacks {' and '.join(lacking)}: runs have no GPU count",
            f"AccountingStorageTRES={','.join(lacking)} added in slurm.conf; restart slurmctld",
        )
    else:
        yield ok("AccountingStorageTRES counts GPUs")
    enforce = set(raw.get("AccountingStorageEnforce", "").split(","))
    if "limits" not in enforce and "all" not in enforce:
        yield warn(
            "AccountingStorageEnforce lacks limits: Slurm's own limits on associations and QOS do not bind",
            "AccountingStorageEnforce=associations,limits,qos in slurm.conf; restart slurmctld",
        )


def gres_types(at: Surroundings) -> Iterator[Finding]:
    """Slurm knows GPUs, and their type."""
    types = at.settings.raw.get("GresTypes", "").split(",")
    if "gpu" not in types:
        yield fail("GresTypes lacks gpu", "GresTypes=gpu in slurm.conf; restart slurmctld")
        return
    untyped = [node.name for node in at.nodes if "" in node.gpus]
    if untyped:
        yield warn(
            f"GPUs without a type on {', '.join(untyped[:5])}: tables cannot tell them apart",
            "Gres=gpu:TYPE:COUNT in slurm.conf and Type=TYPE in gres.conf",
        )
    else:
        yield ok("GPUs have types: " + ", ".join(sorted({kind for node in at.nodes for kind in node.gpus})))
    if "shard" in types and at.settings.version.startswith(_SPLITS_INSTANCES) and _has_mig(at):
        yield warn(
            f"GresTypes has shard beside MIG instances: Slurm {at.settings.version} takes each of the device "
            "files of an instance (MultipleFiles in gres.conf) for a GPU of its own",
            "take shard out of GresTypes in slurm.conf; restart slurmctld and each slurmd",
        )


def memory_per_gpu(at: Surroundings) -> Iterator[Finding]:
    """A job that does not say how much memory it needs leaves some for others."""
    raw = at.settings.raw
    amounts = [raw.get(name, "") for name in ("DefMemPerCPU", "DefMemPerNode")]
    if "DefMemPerGPU" in raw.get("JobDefaults", "") or any(re.match("[1-9]", text) for text in amounts):
        yield ok("jobs without --mem get a default, not the whole node")
    else:
        yield warn(
            "no DefMemPerGPU: a job without --mem takes the whole node's memory, and its other GPUs lie idle",
            "JobDefaults=DefMemPerGPU=... (or DefMemPerCPU) in slurm.conf; scontrol reconfigure",
        )


def _has_mig(at: Surroundings) -> bool:
    """Whether types are called as MIG instances are, such as a100_3g.20gb, or consist of several files."""
    if any(_INSTANCE.search(kind) for node in at.nodes for kind in node.gpus):
        return True
    try:
        lines = (Path(at.settings.conf_path).parent / "gres.conf").read_text(errors="replace").splitlines()
    except OSError:
        return False  # it may lie on the nodes only
    return any(re.match(r"[^#]*\bMultipleFiles=", line, re.IGNORECASE) for line in lines)


def _values(raw: Mapping[str, str], key: str) -> list[str]:
    """Values of a key that later versions print as Key[0], Key[1] …"""
    pattern = re.compile(rf"{key}(\[\d+\])?")
    found = [value for name, value in raw.items() if pattern.fullmatch(name) and value != "(null)"]
    return [part for value in found for part in value.split(",") if part]


def _hook_files(kind: str, patterns: list[str]) -> Iterator[Finding]:
    ours = False
    for pattern in patterns:
        files = sorted(Path(name) for name in glob.glob(pattern))  # noqa: PTH207 - an absolute pattern
        if not files:
            yield fail(
                f"{kind}={pattern} matches nothing: Slurm drains the node of the next job",
                f"put our {kind.lower()} hook there, or take {kind} out of slurm.conf",
            )
        for file in files:
            ours = ours or _HOOK in file.name or _HOOK in file.resolve().name
            if not file.is_file():
                yield fail(
                    f"{file} is matched by {kind} and is no file: Slurm drains nodes", f"move {file} away"
                )
            elif not os.access(file, os.X_OK):
                yield fail(
                    f"{file} is matched by {kind} and cannot be executed: Slurm drains nodes",
                    f"chmod +x {file}, or move it away",
                )
    if ours:
        yield ok(f"{kind} runs our hook")
    else:
        yield fail(
            f"{kind}={','.join(patterns)} does not run our hook: jobs leave no GPU records",
            f"install -m 755 {kind.lower()}/10-slurm-gpu where {kind} finds it",
        )


def _has(at: Surroundings, tres: str) -> bool:
    return any(node.shards if tres == "gres/shard" else node.n_gpus for node in at.nodes)
