"""Whether slurm.conf is written as slurm-gpu needs it, as slurmctld has read it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.outages import conf_of_commands
from slurm_gpu.cli.doctor.checks.files.access import ANY_USER, denies
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import PING_TIMEOUT_S, QUERY_TIMEOUT_S, query_environment
from slurm_gpu.slurm.conf_file import read_conf
from slurm_gpu.slurm.tres import GPU_GRES
from slurm_gpu.text.units import counted, few

_OLDEST = (22, 5)
_GPU_TRES = tuple(f"gres/{name}" for name in GPU_GRES)
_CROWDED = 0.8
"""Of MaxJobCount: beyond it the next large array may be too much."""
_MANY_JOBS = 200_000
_ENFORCED_BY = {"limits": ("limits", "safe", "all"), "qos": ("qos", "all")}
_INSTANCE = re.compile(r"(^|_)[1-9]g\.[0-9]+gb")
_SPLITS_INSTANCES = "22.05."
"""The versions of Slurm of which that was measured."""


def answers(at: DoctorContext) -> Iterator[CheckResult]:
    """The controller answers."""
    try:
        at.site.slurm.ping()
    except SlurmError:
        # Slurm's commands read slurm.conf too: they fail, or wait a minute for a file that is not there.
        found, _ = _unreadable(conf_of_commands(at))
        if not found:
            raise
        yield from found
        return
    settings = at.settings
    n_gpus = sum(node.n_gpus for node in at.nodes)
    yield ok(f"Slurm {settings.version}, {counted(len(at.nodes), 'node')}, {counted(n_gpus, 'GPU')}")
    running = _release(settings.version)
    if running < _OLDEST:
        yield fail(
            f"slurmctld is {settings.version}; slurm-gpu was made for 22.05 and later",
            "upgrade Slurm, or leave slurm-gpu out",
        )
    words = at.site.run(("scontrol", "--version"), query_environment(os.environ), PING_TIMEOUT_S).split()
    if words and _release(words[-1]) != running:
        yield warn(
            f"Slurm's commands on this host are {words[-1]}, slurmctld is {settings.version}",
            "upgrade Slurm here to slurmctld's version",
        )


def grammar(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm can read each line of slurm.conf and gres.conf, so that its daemons can restart."""
    found = list(_for_users(at))
    n_lines = 0
    for path in (at.slurm_conf, at.slurm_conf.with_name("gres.conf")):
        unreadable, n_read = _unreadable(path)
        found += unreadable
        n_lines += n_read
    yield from found
    if not found and n_lines:
        yield ok(f"Slurm can read the {counted(n_lines, 'line')} of {at.slurm_conf} and gres.conf")
    elif not found:
        yield skipped(f"{at.slurm_conf} is another host's, or root's")


def _unreadable(path: Path) -> tuple[list[CheckResult], int]:
    """Return what Slurm cannot read in a file and its includes, and the number of lines that were read."""
    try:
        lines = read_conf(path)
    except OSError as error:
        file = Path(error.filename or path)
        if file == path or isinstance(error, PermissionError):
            return [], 0  # the file is another host's, or root's
        missing = fail(
            f"{path} includes {file} ({error.strerror}): Slurm does not start with it",
            f"put {file.name} there, or take its Include out; then scontrol reconfigure",
        )
        return [missing], 0
    return [
        fail(
            f"{line.place}: Slurm cannot read {line.leftover!r}, and does not start with it",
            "a line is key=value; a value with blanks stands in double quotes. Then scontrol reconfigure",
        )
        for line in lines
        if line.leftover
    ], len(lines)


def _for_users(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that users can read slurm.conf: each Slurm command reads it as its caller."""
    path = at.slurm_conf
    if path == at.conf_cache or not path.exists():
        return  # commands get it from slurmctld
    if (denied := denies(path, ANY_USER)) is not None:
        yield fail(
            f"users may not read {path}, which each command of Slurm reads: {denied.part} denies access",
            denied.remedy,
        )


def prolog_flags(at: DoctorContext) -> Iterator[CheckResult]:
    """The prolog runs on every node of a job, at once."""
    raw = at.settings.raw.get("PrologFlags", "")
    flags = set(raw.split(","))
    if flags & {"Alloc", "Contain"}:
        yield ok(f"PrologFlags={','.join(sorted(flags))}")
    else:
        yield fail(
            "PrologFlags has neither Alloc nor Contain: of a multi-node job only the first node has a prolog",
            f"PrologFlags={with_names(raw, ['Alloc'])} in slurm.conf; scontrol reconfigure",
        )


def gpus_accounted(at: DoctorContext) -> Iterator[CheckResult]:
    """Slurm's accounting counts GPUs."""
    raw = at.settings.raw
    if raw.get("AccountingStorageType", "").rpartition("/")[2] in ("", "none"):
        yield fail(
            "there is no accounting storage: runs cannot be imported",
            "set up slurmdbd, AccountingStorageType=accounting_storage/slurmdbd in slurm.conf",
        )
        return
    tracked = raw.get("AccountingStorageTRES", "").split(",")
    lacking = [name for name in _GPU_TRES if name not in tracked and _untracked_types(at, name, tracked)]
    if lacking:
        yield fail(
            f"AccountingStorageTRES lacks {' and '.join(lacking)}: runs have no GPU count",
            f"add {','.join(lacking)} to what AccountingStorageTRES= names in slurm.conf; restart slurmctld",
        )
    else:
        yield ok("AccountingStorageTRES counts GPUs")
    enforce = set(raw.get("AccountingStorageEnforce", "").lower().split(","))
    missing = [name for name, by in _ENFORCED_BY.items() if enforce.isdisjoint(by)]
    if missing:
        wanted = ["associations", *missing]
        means = {
            "limits": "Slurm's own limits on associations and QOS do not bind",
            "qos": "jobs may name any QOS, and its limits with it",
        }
        yield warn(
            f"AccountingStorageEnforce lacks {' and '.join(missing)}: "
            f"{'; '.join(means[name] for name in missing)}",
            f"AccountingStorageEnforce={with_names(raw.get('AccountingStorageEnforce', ''), wanted)} in "
            "slurm.conf; restart slurmctld. From then on users without an association are refused: "
            "sacctmgr show assoc",
        )


def with_names(value: str, names: Sequence[str]) -> str:
    """A list in slurm.conf as it is, with these added."""
    present = [part for part in value.split(",") if part and part.lower() not in ("none", "(null)")]
    known = [part.lower() for part in present]
    return ",".join([*present, *(name for name in names if name.lower() not in known)])


def gres_types(at: DoctorContext) -> Iterator[CheckResult]:
    """Slurm knows GPUs, and their type."""
    raw = at.settings.raw.get("GresTypes", "")
    types = raw.split(",")
    if "gpu" not in types:
        remedy = f"GresTypes={with_names(raw, ['gpu'])} in slurm.conf; restart slurmctld"
        yield fail("GresTypes lacks gpu", remedy)
        return
    if not any(node.n_gpus for node in at.nodes):
        yield fail(
            "no node has Gres=gpu: Slurm has no GPU to allocate, and nothing is recorded",
            "Gres=gpu:TYPE:COUNT on lines NodeName= of slurm.conf, AutoDetect=nvml or File= in gres.conf, "
            "and restart slurmctld and each slurmd",
        )
        return
    untyped = [node.name for node in at.nodes if "" in node.gpus]
    if untyped:
        yield warn(
            f"GPUs without a type on {few(untyped, 5)}: tables cannot distinguish them",
            "Gres=gpu:TYPE:COUNT in slurm.conf and Type=TYPE in gres.conf",
        )
    else:
        yield ok("GPUs have types: " + ", ".join(sorted({kind for node in at.nodes for kind in node.gpus})))
    if "shard" in types and at.settings.version.startswith(_SPLITS_INSTANCES) and _has_mig(at):
        yield warn(
            f"GresTypes has shard, with MIG instances: Slurm {at.settings.version} counts each device "
            "file of an instance (MultipleFiles in gres.conf) as a GPU",
            "take shard out of GresTypes in slurm.conf; restart slurmctld and each slurmd",
        )


def room_for_jobs(at: DoctorContext) -> Iterator[CheckResult]:
    """There is room for more jobs: slurmctld may hold more jobs than it does now."""
    most = at.settings.raw.get("MaxJobCount", "")
    if not most.isdigit():
        yield warn("scontrol shows no MaxJobCount", "scontrol show config | grep MaxJobCount")
        return
    argv = ("squeue", "--all", "--array", "--noheader", "--states=all", "--format=%A")
    n_jobs = len(at.site.run(argv, query_environment(os.environ), QUERY_TIMEOUT_S).split())
    message = f"slurmctld holds {counted(n_jobs, 'job')}; MaxJobCount={most}"
    if n_jobs > _CROWDED * int(most):
        yield warn(
            f"{message}: then Slurm rejects new jobs of all users",
            f"MaxJobCount={max(_MANY_JOBS, 2 * int(most))} in slurm.conf; restart slurmctld",
        )
    else:
        yield ok(message)


def priorities(at: DoctorContext) -> Iterator[CheckResult]:
    """Jobs are ordered by what they and their owners had, not by their age alone."""
    kind = at.settings.raw.get("PriorityType", "").rpartition("/")[2]
    if kind == "multifactor":
        yield ok("PriorityType=priority/multifactor")
    else:
        yield warn(
            f"PriorityType=priority/{kind or 'basic'}: jobs start in the order in which they came, neither "
            "fair share nor the priority of a QOS count",
            "PriorityType=priority/multifactor in slurm.conf; restart slurmctld",
        )


def _release(version: str) -> tuple[int, int]:
    """Return (22, 5) for 22.05.8, and (0, 0) for an unknown format."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _has_mig(at: DoctorContext) -> bool:
    """Whether types are called as MIG instances are, such as a100_3g.20gb, or consist of several files."""
    if any(_INSTANCE.search(kind) for node in at.nodes for kind in node.gpus):
        return True
    try:
        lines = read_conf(at.slurm_conf.parent / "gres.conf")
    except OSError:
        return False  # it may lie on the nodes only
    return any(line.get("MultipleFiles") is not None for line in lines)


def _untracked_types(at: DoctorContext, tres: str, tracked: Collection[str]) -> bool:
    """Return whether any node has some of this GRES that is not tracked by its type either."""
    if tres == "gres/gpu":
        types = {f"{tres}:{kind}" for node in at.nodes for kind, count in node.gpus.items() if count}
        return not types.issubset(tracked)
    return any(node.shards if tres == "gres/shard" else node.mps for node in at.nodes)
