"""`python confined.py UNIT COMMAND…`: run a command under the restrictions of a systemd unit.

This is for machines where systemd is not process 1. The script applies User=, capabilities, NoNewPrivileges=,
the filters of system calls, address families and writable memory, the number of open files, umask and nice.
The file system is read-only, with /sys, the cgroups, /proc/sys and an empty /home. The unit's own
directories, /run and /var/lib are in memory. Restrictions on devices, limits on memory and tasks, and a
private /tmp are not applied.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pwd
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyseccomp as seccomp

Settings = dict[str, list[str]]

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_LOCKED = (0, 2, 4, 8, 6, 10, 12, 14)  # a remount must keep nosuid, nodev and noexec
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 2, 4, 0o100000
_NAMESPACES = 0x7E020080
_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_SETGID": 6, "CAP_SYS_PTRACE": 19}
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
# System calls that are allowed for some arguments only. clone3 fails with ENOSYS, because a filter cannot
# read its arguments.
_BY_ARGUMENT = {"socket", "mmap", "mprotect", "pkey_mprotect", "shmat", "clone", "clone3", "unshare", "setns"}

_libc = ctypes.CDLL(None, use_errno=True)


def settings_of(unit: Path) -> Settings:
    """Return the settings under [Service] by key; a key may have several values."""
    lines = unit.read_text().partition("[Service]\n")[2].partition("\n[")[0].splitlines()
    found: Settings = {}
    for line in lines:
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def main(unit: Path, command: list[str]) -> None:
    """Apply the restrictions and replace this process with the command."""
    settings = settings_of(unit)
    user = pwd.getpwnam(settings.get("User", ["root"])[0])
    filter_ = _filter(settings)
    _call("unshare", _CLONE_NEWNS)
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    _make_read_only(_own_directories(settings, user))
    os.setpriority(os.PRIO_PROCESS, 0, int(settings.get("Nice", ["0"])[0]))
    files = min(int(settings["LimitNOFILE"][0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.umask(int(settings["UMask"][0], 8))
    _drop(user, {_CAPABILITIES[name] for name in " ".join(settings["CapabilityBoundingSet"]).split()})
    filter_.load()
    os.execvp(command[0], command)


def _own_directories(settings: Settings, user: pwd.struct_passwd) -> list[str]:
    """Create RuntimeDirectory= and StateDirectory= in memory, and return their top directories."""
    own: list[str] = []
    for kind, top in (("Runtime", "/run"), ("State", "/var/lib")):
        _mount("tmpfs", top, 0, "tmpfs")
        for name in " ".join(settings.get(f"{kind}Directory", [])).split():
            base = f"{top}/{name.partition('/')[0]}"
            if base not in own:
                Path(base).mkdir()
                _mount("tmpfs", base, 0, "tmpfs")
                own.append(base)
            place = Path(top, name)
            place.mkdir(parents=True, exist_ok=True)
            os.chown(place, user.pw_uid, user.pw_gid)
            place.chmod(int(settings[f"{kind}DirectoryMode"][0], 8))
    return own


def _make_read_only(writable: list[str]) -> None:
    """Apply ProtectSystem=strict, ProtectKernelTunables=, ProtectControlGroups= and ProtectHome=."""
    needed = (sys.base_prefix, sys.prefix, str(Path(__file__).resolve()))
    if not any(place.startswith("/home/") for place in needed):
        _mount("tmpfs", "/home", 0, "tmpfs")
    _mount("/proc/sys", "/proc/sys", _MS_BIND)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4].encode().decode("unicode_escape")
        if place in writable or place in ("/dev", "/proc") or place.startswith("/dev/"):
            continue
        for locked in _LOCKED:
            with contextlib.suppress(OSError):
                _mount(None, place, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | locked)
                break
        else:
            print(f"confined: {place} cannot be made read-only", file=sys.stderr)


def _drop(user: pwd.struct_passwd, kept: set[int]) -> None:
    for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if number not in kept:
            _call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
    if user.pw_uid != 0:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    else:
        mask = sum(1 << number for number in kept)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        _call("capset", header, (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0))
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _filter(settings: Settings) -> seccomp.SyscallFilter:
    found = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in sorted(_allowed(settings["SystemCallFilter"]) - _BY_ARGUMENT):
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # calls of other machines or kernels
            found.add_rule(seccomp.ALLOW, name)
    for family in " ".join(settings["RestrictAddressFamilies"]).split():
        found.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, _FAMILIES[family]))
    # MemoryDenyWriteExecute=: no memory is both writable and executable, and none becomes executable.
    both = _PROT_WRITE | _PROT_EXEC
    for protection in (0, _PROT_WRITE, _PROT_EXEC):
        found.add_rule(seccomp.ALLOW, "mmap", seccomp.Arg(2, seccomp.MASKED_EQ, both, protection))
    found.add_rule(seccomp.ALLOW, "mprotect", seccomp.Arg(2, seccomp.MASKED_EQ, _PROT_EXEC, 0))
    found.add_rule(seccomp.ALLOW, "shmat", seccomp.Arg(2, seccomp.MASKED_EQ, _SHM_EXEC, 0))
    found.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _NAMESPACES, 0))
    found.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    return found


def _allowed(filters: list[str]) -> set[str]:
    groups = _groups()
    allowed = set(_calls("@default", groups))
    for text in filters:
        calls = {call for word in text.removeprefix("~").split() for call in _calls(word, groups)}
        allowed = allowed - calls if text.startswith("~") else allowed | calls
    return allowed


def _calls(word: str, groups: dict[str, list[str]]) -> Iterator[str]:
    """Yield the calls in one of systemd's groups, or the one call."""
    if not word.startswith("@"):
        yield word
    for member in groups.get(word, ()):
        yield from _calls(member, groups)


def _groups() -> dict[str, list[str]]:
    """Return the members of systemd's groups of system calls, by group."""
    text = subprocess.run(
        ["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[str]] = {}
    members: list[str] = []
    for line in text.splitlines():
        word = line.strip()
        if line.startswith("@"):
            members = found[word] = []
        elif word and not word.startswith("#"):
            members.append(word)
    return found


def _mount(source: str | None, target: str, flags: int, kind: str | None = None) -> None:
    texts = (None if text is None else text.encode() for text in (source, target, kind))
    _call("mount", *texts, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
