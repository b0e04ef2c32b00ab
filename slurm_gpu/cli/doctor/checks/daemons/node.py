"""Check that slurm-gpud runs, reads the events of hooks, and ships its records."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import start, start_and_log
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, may_read, ok, skipped, warn
from slurm_gpu.text.cells import span
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import counted

_DAEMON = "slurm-gpud"
# slurm-gpud reads an event within one second.
_TAKEN_IN_S = 30.0
_SHIPPED_IN_S = 60.0
_ROOM_MIB = 16


def alive(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm-gpud is running on this node, or for each node that this host simulates."""
    here = at.gpu_nodes_here
    if not here:
        yield skipped("this host is not a GPU node")
        return
    processes = running(_DAEMON)
    named = [process.option("--node") for process in processes]
    stopped = [str(process.pid) for process in processes if process.is_stopped]
    lacking = [name for name in here if name not in named]
    if not named:
        yield fail(f"{_DAEMON} is not running on this GPU node", start_and_log(at, _DAEMON))
    elif len(here) > 1 and lacking:
        yield fail(
            f"{_DAEMON} is not running for {compress(lacking)}, which this host simulates",
            _start_one(at, lacking[0]),
        )
    elif len(here) == 1 and (name := named[0] or at.host) != here[0]:
        yield fail(
            f"{_DAEMON} reports as node {name}, but Slurm calls this host {here[0]}, so its shipments are "
            "rejected",
            f"run systemctl edit {_DAEMON} and add ExecStart= and ExecStart=/usr/sbin/{_DAEMON} --node "
            f"{here[0]}"
            if at.has_unit(_DAEMON)
            else f"start it with --node {here[0]}",
        )
    elif stopped:
        yield fail(
            f"{_DAEMON} (process {', '.join(stopped)}) is stopped and measures nothing",
            f"run kill -CONT {' '.join(stopped)}",
        )
    else:
        yield ok(f"{_DAEMON} runs" + (f" for {compress(here)}" if len(here) > 1 else ""))


def hook_directory(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that only root has access to the events of hooks, and that slurm-gpud reads them promptly."""
    if not at.is_gpu_node:
        yield skipped("this host is not a GPU node")
        return
    taken = _directories("--run-dir", at.run_dir)
    for run_dir in taken:
        yield from _hook_directory(at, run_dir / "jobs")
    # By default, hooks write to this directory, regardless of where slurm-gpud reads.
    if at.run_dir not in taken and may_read(written := at.run_dir / "jobs") and any(written.iterdir()):
        yield fail(
            f"hooks write to {written}, but {_DAEMON} reads {taken[0] / 'jobs'}",
            f"start {_DAEMON} without --run-dir, or export SLURM_GPU_RUN_DIR={taken[0]} in the hooks",
        )


def _start_one(at: DoctorContext, node: str) -> str:
    """Return how to start slurm-gpud for one of several nodes on this host."""
    return start(at, _DAEMON) + ("" if at.has_unit(_DAEMON) else f" --node={node}")


def _hook_directory(at: DoctorContext, directory: Path) -> Iterator[CheckResult]:
    now_s = at.site.wall()
    try:
        status = directory.stat()
        ages = [now_s - file.stat().st_mtime for file in directory.iterdir() if file.is_file()]
    except FileNotFoundError:
        yield warn(
            f"{directory} does not exist: no job has started on this host yet", start_and_log(at, _DAEMON)
        )
        return
    except PermissionError:
        yield skipped(f"only root may read {directory}; run doctor as root")
        return
    if status.st_uid != 0 or stat.S_IMODE(status.st_mode) & 0o077:
        yield fail(
            f"users other than root have access to {directory}",
            f"run chown root {directory} and chmod 700 {directory}",
        )
    if ages and max(ages) > _TAKEN_IN_S:
        waiting = f"{counted(len(ages), 'event')} waiting in {directory}, the oldest for {span(max(ages))}"
        yield fail(waiting, start_and_log(at, _DAEMON))
    else:
        yield ok(f"{directory}: {counted(len(ages), 'event')} waiting")
    yield from _room(directory)


def spool(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that final records reach the database."""
    for state_dir in _directories("--state-dir", at.state_dir):
        yield from _spool(state_dir / "spool", at.site.wall())


def _spool(directory: Path, now_s: float) -> Iterator[CheckResult]:
    try:
        waiting = _finished_records(directory / "log", now_s - _SHIPPED_IN_S)
        rejected = directory / "rejected"
        refused = len(list(rejected.iterdir())) if rejected.is_dir() else 0
    except FileNotFoundError:
        yield skipped(f"{directory} does not exist")
        return
    except PermissionError:
        yield skipped(f"only root may read {directory}; run doctor as root")
        return
    if refused:
        yield warn(
            f"slurm-gpudbd rejected {counted(refused, 'record')}",
            f"read the reasons in the files in {rejected}, then remove the files",
        )
    if waiting:
        yield warn(
            f"{directory} has {counted(waiting, 'final record')} to send",
            "see the result of the slurm-gpudbd check; no record is lost",
        )
    else:
        yield ok(f"{directory}: no final record has waited for longer than {span(_SHIPPED_IN_S)}")
    yield from _room(directory)


def _room(directory: Path) -> Iterator[CheckResult]:
    """Check that files can be written in the directory."""
    disk = os.statvfs(directory)
    free_mib = disk.f_bavail * disk.f_frsize >> 20
    if disk.f_flag & os.ST_RDONLY:
        yield fail(
            f"{directory} is mounted read-only",
            "see dmesg for the cause; fix it, then remount the file system",
        )
    elif free_mib < _ROOM_MIB or (disk.f_files and not disk.f_favail):  # some file systems do not count files
        yield fail(
            f"{directory} is full: {free_mib} MiB and {disk.f_favail} files are left",
            f"run df -h {directory} and df -i {directory}, and free space: data that cannot be "
            f"written is lost when {_DAEMON} ends",
        )


def _finished_records(log: Path, until_s: float) -> int:
    """Count the unshipped final records in the spool's append log that are not newer than `until_s`.

    Each line of the log contains a checksum and a change in JSON.
    """
    final: dict[str, int] = {}
    shipped: dict[str, int] = {}
    with log.open("rb") as lines:
        for line in lines:
            try:
                change = json.loads(line[9:])
            except ValueError:
                continue  # slurm-gpud is still writing this line
            key, value = change["key"], change["value"]
            if key.startswith("record/"):
                if value is not None and value["final"] and value["last_s"] <= until_s:
                    final[key] = value["seq"]
                else:
                    final.pop(key, None)
            elif key.startswith("shipped/record/"):
                shipped[key.removeprefix("shipped/")] = -1 if value is None else value
    return sum(shipped.get(key, -1) < seq for key, seq in final.items())


def _directories(option: str, default: Path) -> list[Path]:
    """Return the directories given to the running daemons; each simulated node has its own."""
    given = {Path(value) for one in running(_DAEMON) if (value := one.option(option)) is not None}
    return sorted(given) if given else [default]
