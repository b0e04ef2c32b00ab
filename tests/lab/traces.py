"""Find traces of the lab on this host without the lab's own code."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

_PROGRAMS = re.compile(r"slurm|munged|mariadb|mysqld|simgpu")
_NAMES = re.compile(r"slurm|munge|maria|mysql|simgpu|alice|bob|carol|undergrad|gpuops")
_TREES = ("/dev", "/run", "/etc", "/var/lib", "/var/log", "/var/spool", "/var/mail", "/home")
_LAB_UIDS = {60901, 60902, 60903, 60921}
# Python writes compiled modules next to its sources, which may be in one of the trees.
_REPOSITORY = str(Path(__file__).resolve().parents[2])
# Other tests on this host create these names; the lab does not.
_TEMPORARY = re.compile(r"(/tmp|/dev/shm)/(pytest-of-|sg[a-z]+-|tmp)")


@dataclass(frozen=True)
class Traces:
    """Everything that up() may create and down() must remove."""

    processes: frozenset[str]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    accounts: frozenset[str]
    paths: frozenset[str]

    def since(self, before: Traces) -> list[str]:
        """Return the new traces; traces that disappeared did not belong to the lab."""
        added = (getattr(self, f.name) - getattr(before, f.name) for f in fields(self))
        return sorted(trace for kind in added for trace in kind if not _TEMPORARY.search(trace))


def traces() -> Traces:
    """Return the processes, cgroups, mounts, accounts and files of the lab only."""
    return Traces(_processes(), _cgroups(), _mounts(), _accounts(), _paths())


def _processes() -> frozenset[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            program = stat[stat.index("(") + 1 : stat.rindex(")")]
            alive = stat.rpartition(")")[2].split()[0] not in "ZX"
            here = os.path.samestat((entry / "root").stat(), Path("/").stat()) and (
                (entry / "ns" / "pid").readlink() == Path("/proc/self/ns/pid").readlink()
            )
            uid = entry.stat().st_uid
            arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        # A container or chroot on this host may have a lab of its own, which comes and goes.
        if (
            alive
            and here
            and (_PROGRAMS.search(program) or uid in _LAB_UIDS or "sleep 100000000" in arguments)
        ):
            found.add(f"{entry.name} {program} {arguments}")
    return frozenset(found)


def _cgroups() -> frozenset[str]:
    # The top level and the slices of each hierarchy; deeper groups belong to containers.
    tops = {
        path
        for pattern in ("*", "*/*", "*/*.slice/*")
        for path in Path("/sys/fs/cgroup").glob(pattern)
        if path.is_dir() and _NAMES.search(path.name)
    }
    return frozenset(directory for top in tops for directory, _, _ in os.walk(top))


def _mounts() -> frozenset[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return frozenset(line.split()[4] for line in lines if _NAMES.search(line))


def _accounts() -> frozenset[str]:
    files = ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
    return frozenset(
        f"{name}: {line}"
        for name in files
        if (path := Path("/etc") / name).exists()
        for line in path.read_text().splitlines()
    )


def _paths() -> frozenset[str]:
    found = {
        str(path)
        for tree in _TREES
        for directory, directories, files in os.walk(tree)
        if not directory.startswith(_REPOSITORY)
        for name in (*directories, *files)
        if _NAMES.search(str(path := Path(directory) / name))
    }
    # All users write there; a trace of the lab has its name or belongs to its users.
    with os.scandir("/tmp") as entries:
        found |= {entry.path for entry in entries if _NAMES.search(entry.name) or _is_a_users(entry)}
    return frozenset(found)


def _is_a_users(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid in _LAB_UIDS
    except FileNotFoundError:
        return False
