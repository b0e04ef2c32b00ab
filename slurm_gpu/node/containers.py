"""Does a process run in a container: Apptainer, Singularity, Enroot (Pyxis), Docker, Podman, Kubernetes?

A process in the daemon's own mount namespace does not. A namespace of its own is not enough, since Slurm's
job_container/tmpfs makes one too; then the container's own traces decide.
"""

from __future__ import annotations

import os
import re

from slurm_gpu.node.procfs import Processes, read

_LIMIT = 1 << 16
# Files and directories that the runtimes put at the root of what they start.
_AT_ROOT = ("/.singularity.d", "/.dockerenv", "/run/.containerenv")
_CGROUP = re.compile(rb"/docker[/-]|/libpod[_-]|/kubepods|/crio-|/containerd")
_MARKS = (b"APPTAINER_CONTAINER=", b"SINGULARITY_CONTAINER=", b"ENROOT_ROOTFS=", b"container=")
_ROOT_MOUNT = re.compile(rb"enroot|pyxis|apptainer|singularity|docker|containers/storage|squashfuse")


def in_container(processes: Processes, pid: int) -> bool | None:
    """Whether it does; None where the process is gone or may not be looked at."""
    try:
        own = os.readlink(processes.path(os.getpid(), "ns/mnt"))  # noqa: PTH115
        if os.readlink(processes.path(pid, "ns/mnt")) == own:  # noqa: PTH115
            return False
    except OSError:
        return None
    return (
        any(os.path.lexists(processes.path(pid, "root") + name) for name in _AT_ROOT)
        or _CGROUP.search(_content(processes, pid, "cgroup")) is not None
        or _ROOT_MOUNT.search(root_mount(_content(processes, pid, "mountinfo"))) is not None
        or any(entry.startswith(_MARKS) for entry in _content(processes, pid, "environ").split(b"\0"))
    )


def root_mount(mountinfo: bytes) -> bytes:
    """The line of /proc/PID/mountinfo that tells what is mounted at /; empty if none does."""
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
