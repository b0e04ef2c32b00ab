"""Check that slurm.conf, as slurmctld has read it, meets the requirements of slurm-gpu."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.outages import conf_of_commands, failure_from
from slurm_gpu.cli.doctor.checks.files.access import ANY_USER, denies
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.cli.doctor.checks.slurm.unread import RESTART, reads
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.slurm.conf_file import read_conf, settings_named
from slurm_gpu.slurm.runner import PING_TIMEOUT_S, QUERY_TIMEOUT_S, query_environment
from slurm_gpu.slurm.tres import GPU_GRES
from slurm_gpu.text.units import counted, few

_OLDEST = (22, 5)
_GPU_TRES = tuple(f"gres/{name}" for name in GPU_GRES)
# If more jobs than this share of MaxJobCount exist, the next large array may exceed the limit.
_CROWDED = 0.8
_MANY_JOBS = 200_000
_ENFORCED_BY = {"limits": ("limits", "safe", "all"), "qos": ("qos", "all")}
_INSTANCE = re.compile(r"(^|_)[1-9]g\.[0-9]+gb")
# In tests, this version of Slurm counted each device file of a MIG instance as a GPU.
_SPLITS_INSTANCES = "22.05."


def answers(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurmctld answers, and that its version is supported."""
    try:
        at.site.slurm.ping()
    except SlurmError as error:
        # Slurm's commands also read slurm.conf: if it is unreadable, they fail or wait for a minute.
        path = conf_of_commands(at)
        found, _ = _unreadable(path)
        found = found or list(_without_script(at, path))
        if not found and path.exists():
            raise
        copy = "copy slurm.conf from the controller to /etc/slurm: Slurm's commands and slurm-gpudbd read it"
        yield from found or [failure_from(at, str(error), copy)]
        return
    settings = at.settings
    n_gpus = sum(node.n_gpus for node in at.nodes)
    yield ok(f"Slurm {settings.version}, {counted(len(at.nodes), 'node')}, {counted(n_gpus, 'GPU')}")
    running = _release(settings.version)
    if running < _OLDEST:
        yield fail(
            f"slurmctld has version {settings.version}; slurm-gpu requires 22.05 or later",
            "upgrade Slurm, or do not use slurm-gpu",
        )
    words = at.site.run(("scontrol", "--version"), query_environment(os.environ), PING_TIMEOUT_S).split()
    if words and _release(words[-1]) != running:
        yield warn(
            f"Slurm's commands on this host have version {words[-1]}, but slurmctld has {settings.version}",
            "install slurmctld's version of the commands",
        )


def _without_script(at: DoctorContext, path: Path) -> Iterator[CheckResult]:
    """Yield a failure on a host of slurmctld without job_submit.lua, which slurmctld requires to start."""
    try:
        lines = read_conf(path)
    except OSError:
        return
    hosts = {re.split(r"[.(]", line.value)[0] for line in settings_named(lines, "SlurmctldHost")}
    script = path.with_name(SCRIPT_NAME)
    for line in settings_named(lines, "JobSubmitPlugins")[-1:]:
        has_lua = any(part.strip().rpartition("/")[2] == "lua" for part in line.value.split(","))
        if at.host not in hosts or not has_lua or script.exists():
            return
        yield fail(
            f"{line.place} has {line}, but {script} is missing: slurmctld does not start",
            "remove lua from that line, start slurmctld, and run slurm-gpu policy apply; then restore the "
            "line and restart slurmctld",
        )


def grammar(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm can read each line of slurm.conf and gres.conf; otherwise, it cannot restart."""
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
        yield skipped(f"{at.slurm_conf} is on another host, or only root may read it")


def _unreadable(path: Path) -> tuple[list[CheckResult], int]:
    """Return findings about lines that Slurm cannot read in a file and its includes, and the line count."""
    try:
        lines = read_conf(path)
    except OSError as error:
        file = Path(error.filename or path)
        if file == path or isinstance(error, PermissionError):
            return [], 0  # the file is on another host, or only root may read it
        missing = fail(
            f"{path} includes {file} ({error.strerror}), so Slurm does not start",
            f"create {file.name} there, or remove its Include; then run scontrol reconfigure",
        )
        return [missing], 0
    return [
        fail(
            f"{line.place}: Slurm cannot read {line.leftover!r}, so it does not start",
            "write lines as key=value, with double quotes around values that contain blanks; then run "
            "scontrol reconfigure",
        )
        for line in lines
        if line.leftover
    ], len(lines)


def _for_users(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that users can read slurm.conf: each Slurm command reads it with the user's permissions."""
    path = at.slurm_conf
    if path == at.conf_cache or not path.exists():
        return  # commands get the file from slurmctld
    if (denied := denies(path, ANY_USER)) is not None:
        yield fail(
            f"users may not read {path}, which each command of Slurm reads: {denied.part} denies access",
            denied.remedy,
        )


@reads("PrologFlags")
def prolog_flags(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that the prolog runs on every node of a job when the job starts."""
    raw = at.settings.raw.get("PrologFlags", "")
    flags = set(raw.split(","))
    if flags & {"Alloc", "Contain"}:
        yield ok(f"PrologFlags={','.join(sorted(flags))}")
    else:
        yield fail(
            "PrologFlags has neither Alloc nor Contain, so the prolog of a multi-node job runs only on the "
            "job's first node",
            f"set PrologFlags={with_names(raw, ['Alloc'])} in slurm.conf; then run scontrol reconfigure",
        )


@reads("AccountingStorageType", "AccountingStorageTRES", "AccountingStorageEnforce", remedy=RESTART)
def gpus_accounted(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm's accounting counts GPUs, and that Slurm enforces its limits."""
    raw = at.settings.raw
    if raw.get("AccountingStorageType", "").rpartition("/")[2] in ("", "none"):
        yield fail(
            "Slurm has no accounting storage, so runs cannot be imported",
            "set up slurmdbd, and set AccountingStorageType=accounting_storage/slurmdbd in slurm.conf",
        )
        return
    tracked = raw.get("AccountingStorageTRES", "").split(",")
    lacking = [name for name in _GPU_TRES if name not in tracked and _untracked_types(at, name, tracked)]
    if lacking:
        yield fail(
            f"AccountingStorageTRES lacks {' and '.join(lacking)}, so runs have no GPU count",
            f"add {','.join(lacking)} to AccountingStorageTRES= in slurm.conf; then restart slurmctld",
        )
    else:
        yield ok("AccountingStorageTRES counts GPUs")
    enforce = set(raw.get("AccountingStorageEnforce", "").lower().split(","))
    missing = [name for name, by in _ENFORCED_BY.items() if enforce.isdisjoint(by)]
    if missing:
        wanted = ["associations", *missing]
        means = {
            "limits": "Slurm does not enforce its own limits on associations and QOS",
            "qos": "jobs may use any QOS and its limits",
        }
        yield warn(
            f"AccountingStorageEnforce lacks {' and '.join(missing)}: "
            f"{'; '.join(means[name] for name in missing)}",
            f"set AccountingStorageEnforce={with_names(raw.get('AccountingStorageEnforce', ''), wanted)} in "
            "slurm.conf; then restart slurmctld. From then on, Slurm refuses users without an association: "
            "list associations with sacctmgr show assoc",
        )


def with_names(value: str, names: Sequence[str]) -> str:
    """Return a comma-separated value of slurm.conf with the names added."""
    present = [part for part in value.split(",") if part and part.lower() not in ("none", "(null)")]
    known = [part.lower() for part in present]
    return ",".join([*present, *(name for name in names if name.lower() not in known)])


@reads("GresTypes", remedy=f"{RESTART} and each slurmd")
def gres_types(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm has GPUs, and that they have types."""
    raw = at.settings.raw.get("GresTypes", "")
    types = raw.split(",")
    if "gpu" not in types:
        remedy = f"set GresTypes={with_names(raw, ['gpu'])} in slurm.conf; then restart slurmctld"
        yield fail("GresTypes lacks gpu", remedy)
        return
    if not any(node.n_gpus for node in at.nodes):
        yield fail(
            "no node has Gres=gpu, so Slurm has no GPU to allocate, and nothing is recorded",
            "add Gres=gpu:TYPE:COUNT to the lines NodeName= of slurm.conf, and AutoDetect=nvml or File= to "
            "gres.conf; then restart slurmctld and each slurmd",
        )
        return
    untyped = [node.name for node in at.nodes if "" in node.gpus]
    if untyped:
        yield warn(
            f"GPUs of {few(untyped, 5)} have no type, so tables cannot distinguish them",
            "set Gres=gpu:TYPE:COUNT in slurm.conf and Type=TYPE in gres.conf",
        )
    else:
        yield ok("GPUs have types: " + ", ".join(sorted({kind for node in at.nodes for kind in node.gpus})))
    if "shard" in types and at.settings.version.startswith(_SPLITS_INSTANCES) and _has_mig(at):
        yield warn(
            f"GresTypes has shard, and there are MIG instances: Slurm {at.settings.version} counts each "
            "device "
            "file of an instance (MultipleFiles in gres.conf) as a GPU",
            "remove shard from GresTypes in slurm.conf; then restart slurmctld and each slurmd",
        )


@reads("MaxJobCount", remedy=RESTART)
def room_for_jobs(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurmctld accepts more jobs than it currently has."""
    most = at.settings.raw.get("MaxJobCount", "")
    if not most.isdigit():
        yield warn("scontrol shows no MaxJobCount", "run scontrol show config | grep MaxJobCount")
        return
    argv = ("squeue", "--all", "--array", "--noheader", "--states=all", "--format=%A")
    n_jobs = len(at.site.run(argv, query_environment(os.environ), QUERY_TIMEOUT_S).split())
    message = f"slurmctld has {counted(n_jobs, 'job')}; MaxJobCount={most}"
    if n_jobs > _CROWDED * int(most):
        yield warn(
            f"{message}: when this limit is reached, Slurm rejects new jobs of all users",
            f"set MaxJobCount={max(_MANY_JOBS, 2 * int(most))} in slurm.conf; then restart slurmctld",
        )
    else:
        yield ok(message)


@reads("PriorityType", remedy=RESTART)
def priorities(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm orders jobs by several factors, not only by their age."""
    kind = at.settings.raw.get("PriorityType", "").rpartition("/")[2]
    if kind == "multifactor":
        yield ok("PriorityType=priority/multifactor")
    else:
        yield warn(
            f"PriorityType=priority/{kind or 'basic'}: jobs start in the order of their submission, "
            "regardless "
            "of fair share and the priority of their QOS",
            "set PriorityType=priority/multifactor in slurm.conf; then restart slurmctld",
        )


def _release(version: str) -> tuple[int, int]:
    """Return the major and minor version, such as (22, 5) for 22.05.8; (0, 0) for an unknown format."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _has_mig(at: DoctorContext) -> bool:
    """Return whether a GPU type is named like a MIG instance (a100_3g.20gb), or has several files."""
    if any(_INSTANCE.search(kind) for node in at.nodes for kind in node.gpus):
        return True
    try:
        lines = read_conf(at.slurm_conf.parent / "gres.conf")
    except OSError:
        return False  # the file may exist only on the nodes
    return any(line.get("MultipleFiles") is not None for line in lines)


def _untracked_types(at: DoctorContext, tres: str, tracked: Collection[str]) -> bool:
    """Return whether any node has this GRES, unless accounting tracks each of its types."""
    if tres == "gres/gpu":
        types = {f"{tres}:{kind}" for node in at.nodes for kind, count in node.gpus.items() if count}
        return not types.issubset(tracked)
    return any(node.shards if tres == "gres/shard" else node.mps for node in at.nodes)
