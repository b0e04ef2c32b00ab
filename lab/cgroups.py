"""Find the control groups that the lab may use on this host, and remove those left by its jobs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MOUNT_POINT = Path("/sys/fs/cgroup")
_V1_CONTROLLERS = ("freezer", "devices")
_V2_CONTROLLERS = {"cpu", "cpuset", "memory"}
_PROBE = "slurm-gpu-lab-probe"


class CgroupVersion(StrEnum):
    """The cgroup plugin of Slurm that works on this host."""

    V1 = "cgroup/v1"
    V2 = "cgroup/v2"
    NONE = "disabled"


@dataclass(frozen=True)
class CgroupSupport:
    """The result of `probe`; if devices cannot be fenced, ``reason`` explains why in one line."""

    version: CgroupVersion
    reason: str = ""


def probe(mount_point: Path = MOUNT_POINT) -> CgroupSupport:
    """Test what Slurm needs: create a cgroup, deny it a device, and remove the cgroup."""
    if (mount_point / "cgroup.controllers").exists():
        return _probe_v2(mount_point)
    missing = [name for name in _V1_CONTROLLERS if not (mount_point / name / "cgroup.procs").exists()]
    if missing:
        return CgroupSupport(
            CgroupVersion.NONE, f"no cgroup {' and '.join(missing)} controller at {mount_point}"
        )
    for name in _V1_CONTROLLERS:
        group = mount_point / name / _PROBE
        try:
            group.mkdir(exist_ok=True)
            if name == "devices":
                (group / "devices.deny").write_text("c 195:0 rwm")
        except OSError as error:
            return CgroupSupport(CgroupVersion.NONE, f"cgroup {name} cannot be used: {error}")
        finally:
            if group.exists():
                group.rmdir()
    return CgroupSupport(CgroupVersion.V1)


def _probe_v2(mount_point: Path) -> CgroupSupport:
    missing = _V2_CONTROLLERS - set((mount_point / "cgroup.controllers").read_text().split())
    if missing:
        return CgroupSupport(CgroupVersion.NONE, f"cgroup v2 lacks {', '.join(sorted(missing))}")
    group = mount_point / _PROBE
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        return CgroupSupport(CgroupVersion.NONE, f"cgroup v2 cannot be used: {error}")
    group.rmdir()
    return CgroupSupport(CgroupVersion.V2)


def node_groups(nodes: Sequence[str], mount_point: Path = MOUNT_POINT) -> list[Path]:
    """Return the existing top-level groups that slurmd creates for these nodes."""
    if (mount_point / "cgroup.controllers").exists():
        parents = [mount_point / "system.slice"]
        names = [f"{node}_slurmstepd.scope" for node in nodes]
    else:
        parents = sorted(mount_point.iterdir()) if mount_point.is_dir() else []
        names = [f"slurm_{node}" for node in nodes]
    return [group for parent in parents for name in names if (group := parent / name).is_dir()]


def processes(groups: Sequence[Path]) -> set[int]:
    """Return the IDs of all processes in these groups and below."""
    found: set[int] = set()
    for directory in _deepest_first(groups):
        try:
            found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        except OSError:
            continue
    return found


def thaw(groups: Sequence[Path]) -> None:
    """Thaw the frozen processes in these groups, since SIGKILL does not end frozen processes."""
    for directory in _deepest_first(groups):
        for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            try:
                with (directory / name).open("r+") as file:
                    file.write(value)
            except OSError:
                continue


def remove(groups: Sequence[Path]) -> bool:
    """Remove these groups and their descendants; return whether all of them are gone.

    A group is busy for a moment after its last process has died. A daemon that is killed while it starts a
    job may also leave a new process or group, so the caller kills and removes again.
    """
    for directory in _deepest_first(groups):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not any(group.exists() for group in groups)


def _deepest_first(groups: Sequence[Path]) -> Iterator[Path]:
    for group in groups:
        for directory, _, _ in os.walk(group, topdown=False):
            yield Path(directory)
