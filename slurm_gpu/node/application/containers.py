"""Detect containers of Apptainer, Singularity, Enroot (Pyxis), Docker, Podman and Kubernetes.

A process in the daemon's mount namespace is not in a container. A different mount namespace is not sufficient
evidence, because Slurm's job_container/tmpfs also creates one; the process must also show traces of a
container runtime.
"""

from __future__ import annotations

import os
import re

from slurm_gpu.node.process.procfs import Processes, read

_LIMIT = 1 << 16
# Files and directories that runtimes create at the root of a container.
_AT_ROOT = ("/.singularity.d", "/.dockerenv", "/run/.containerenv")
_CGROUP = re.compile(rb"/docker[/-]|/libpod[_-]|/kubepods|/crio-|/containerd")
_MARKS = (b"APPTAINER_CONTAINER=", b"SINGULARITY_CONTAINER=", b"ENROOT_ROOTFS=", b"container=")
_ROOT_MOUNT = re.compile(rb"enroot|pyxis|apptainer|singularity|docker|containers/storage|squashfuse")


def in_container(processes: Processes, pid: int) -> bool | None:
    """Return whether the process runs in a container, or None if it ended or cannot be read.

    Traces that the daemon also has are ignored: they come from the node's image, or from a container around
    Slurm.
    """
    own = os.getpid()
    try:
        if _namespace(processes, pid) == _namespace(processes, own):
            return False
    except OSError:
        return None
    return bool(_traces(processes, pid) - _traces(processes, own))


def _namespace(processes: Processes, pid: int) -> str:
    return os.readlink(processes.path(pid, "ns/mnt"))  # noqa: PTH115


def _traces(processes: Processes, pid: int) -> frozenset[str]:
    """Return the kinds of container runtime traces that the process shows."""
    found = {name for name in _AT_ROOT if os.path.lexists(processes.path(pid, "root") + name)}
    if _CGROUP.search(_content(processes, pid, "cgroup")):
        found.add("cgroup")
    if _ROOT_MOUNT.search(root_mount(_content(processes, pid, "mountinfo"))):
        found.add("mount")
    if any(entry.startswith(_MARKS) for entry in _content(processes, pid, "environ").split(b"\0")):
        found.add("environment")
    return frozenset(found)


def root_mount(mountinfo: bytes) -> bytes:
    """Return the line for / in /proc/PID/mountinfo, or an empty string if there is none."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if len(fields) > 4 and fields[4] == b"/":
            return line
    return b""


def _content(processes: Processes, pid: int, name: str) -> bytes:
    try:
        return read(processes.path(pid, name), _LIMIT)
    except OSError:
        return b""
