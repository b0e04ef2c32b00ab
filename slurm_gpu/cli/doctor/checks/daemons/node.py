"""Whether slurm-gpud takes in what the hooks write, and gets rid of its records."""

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
_TAKEN_IN_S = 30.0
_SHIPPED_IN_S = 60.0
"""slurm-gpud takes an event in within its second; so much later it is not going to."""
_ROOM_MIB = 16


def alive(at: DoctorContext) -> Iterator[CheckResult]:
    """slurm-gpud runs on this node; on each of them where one host simulates several."""
    here = at.gpu_nodes_here
    if not here:
        yield skipped("this host is no GPU node")
        return
    processes = running(_DAEMON)
    named = [process.option("--node") for process in processes]
    stopped = [str(process.pid) for process in processes if process.is_stopped]
    lacking = [name for name in here if name not in named]
    if not named:
        yield fail(f"no {_DAEMON} runs on this GPU node", start_and_log(at, _DAEMON))
    elif len(here) > 1 and lacking:
        yield fail(
            f"no {_DAEMON} runs for {compress(lacking)}, which this host is too", _start_one(at, lacking[0])
        )
    elif len(here) == 1 and (name := named[0] or at.host) != here[0]:
        yield fail(
            f"{_DAEMON} speaks for {name}, and Slurm calls this host {here[0]}: what it sends is refused",
            f"systemctl edit {_DAEMON}: ExecStart= and ExecStart=/usr/sbin/{_DAEMON} --node {here[0]}"
            if at.has_unit(_DAEMON)
            else f"start it with --node {here[0]}",
        )
    elif stopped:
        yield fail(
            f"{_DAEMON} (process {', '.join(stopped)}) is stopped and measures nothing",
            f"kill -CONT {' '.join(stopped)}",
        )
    else:
        yield ok(f"{_DAEMON} runs" + (f" for {compress(here)}" if len(here) > 1 else ""))


def hook_directory(at: DoctorContext) -> Iterator[CheckResult]:
    """Hooks can write, only root can read, and nothing lies there for long."""
    if not at.is_gpu_node:
        yield skipped("this host is no GPU node")
        return
    taken = _directories("--run-dir", at.run_dir)
    for run_dir in taken:
        yield from _hook_directory(at, run_dir / "jobs")
    # By default hooks write here, wherever slurm-gpud reads.
    if at.run_dir not in taken and may_read(written := at.run_dir / "jobs") and any(written.iterdir()):
        yield fail(
            f"hooks write to {written}, but {_DAEMON} reads {taken[0] / 'jobs'}",
            f"start {_DAEMON} without --run-dir; or export SLURM_GPU_RUN_DIR={taken[0]} in the hooks",
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
        yield warn(f"there is no {directory}: no job has started here yet", start_and_log(at, _DAEMON))
        return
    except PermissionError:
        yield skipped(f"{directory} is root's; run doctor as root")
        return
    if status.st_uid != 0 or stat.S_IMODE(status.st_mode) & 0o077:
        yield fail(
            f"others than root may reach {directory}", f"chown root {directory}; chmod 700 {directory}"
        )
    if ages and max(ages) > _TAKEN_IN_S:
        told = f"{counted(len(ages), 'event')} waiting in {directory}, the oldest for {span(max(ages))}"
        yield fail(told, start_and_log(at, _DAEMON))
    else:
        yield ok(f"{directory}: {counted(len(ages), 'event')} waiting")
    yield from _room(directory)


def spool(at: DoctorContext) -> Iterator[CheckResult]:
    """Finished records reach the database."""
    for state_dir in _directories("--state-dir", at.state_dir):
        yield from _spool(state_dir / "spool", at.site.wall())


def _spool(directory: Path, now_s: float) -> Iterator[CheckResult]:
    try:
        waiting = _finished_records(directory / "log", now_s - _SHIPPED_IN_S)
        rejected = directory / "rejected"
        refused = len(list(rejected.iterdir())) if rejected.is_dir() else 0
    except FileNotFoundError:
        yield skipped(f"there is no {directory}")
        return
    except PermissionError:
        yield skipped(f"{directory} is root's; run doctor as root")
        return
    if refused:
        yield warn(
            f"slurm-gpudbd refused {counted(refused, 'record')}",
            f"read why in {rejected}, then remove what lies there",
        )
    if waiting:
        yield warn(
            f"{counted(waiting, 'finished record')} still to be sent from {directory}",
            "see the finding on slurm-gpudbd; nothing is lost",
        )
    else:
        yield ok(f"{directory}: no finished record waits for longer than {span(_SHIPPED_IN_S)}")
    yield from _room(directory)


def _room(directory: Path) -> Iterator[CheckResult]:
    """Whether anything can be written there."""
    disk = os.statvfs(directory)
    free_mib = disk.f_bavail * disk.f_frsize >> 20
    if disk.f_flag & os.ST_RDONLY:
        yield fail(f"{directory} is mounted read-only", "dmesg says why; fix it, then remount it")
    elif free_mib < _ROOM_MIB or (disk.f_files and not disk.f_favail):  # some count no files
        yield fail(
            f"{directory} has no room: {free_mib} MiB and {disk.f_favail} files are left",
            f"df -h {directory}; df -i {directory}; make room: what is not written is lost with its daemon",
        )


def _finished_records(log: Path, until_s: float) -> int:
    """Final records of before `until_s` in the spool's append log that are not shipped yet.

    The log has a checksum and a JSON change per line.
    """
    final: dict[str, int] = {}
    shipped: dict[str, int] = {}
    with log.open("rb") as lines:
        for line in lines:
            try:
                change = json.loads(line[9:])
            except ValueError:
                continue  # a line that slurm-gpud is just writing
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
    """The directories that the running daemons were given; simulated nodes have one of their own each."""
    given = {Path(value) for one in running(_DAEMON) if (value := one.option(option)) is not None}
    return sorted(given) if given else [default]
