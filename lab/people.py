"""The lab's UNIX users and groups: up() creates them on this host, and down() removes them."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

# The comment field in /etc/passwd of users that a lab created.
_MARK = "slurm-gpu lab user"


@dataclass(frozen=True)
class Person:
    """A user of the lab, with a UNIX account and a Slurm association."""

    name: str
    uid: int
    account: str
    unix_groups: tuple[str, ...] = ()
    operator: bool = False


PEOPLE = (
    Person("alice", 60901, "vision"),
    Person("bob", 60902, "nlp", ("undergrad",)),
    Person("carol", 60903, "vision", ("gpuops",), operator=True),
)
ACCOUNTS = ("vision", "nlp")
UNIX_GROUPS = {"undergrad": 60911, "gpuops": 60912}
# The user that slurm-gpuweb runs as. The lab does not change a user that a package has created.
WEB_USER = "slurm-gpu-web"
_WEB_UID = 60921
_UIDS = {person.name: person.uid for person in PEOPLE}
_GIDS = _UIDS | UNIX_GROUPS
_MADE = {**_UIDS, WEB_USER: _WEB_UID}


def person(name: str) -> Person:
    """Return the lab's user ``name``."""
    for candidate in PEOPLE:
        if candidate.name == name:
            return candidate
    raise LabError(f"{name!r} is not a user of the lab: {', '.join(_UIDS)} are")


@dataclass(frozen=True)
class Identity:
    """The UID, GID and groups of a process that runs as a user."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def identity(name: str) -> Identity:
    """Return the identity of root or of a user of the lab."""
    if name == "root":
        return Identity(0, 0)
    one = person(name)
    return Identity(one.uid, one.uid, tuple(UNIX_GROUPS[group] for group in one.unix_groups))


def require_system_users(*names: str) -> None:
    """Check for the users that daemons run as; on most systems, packages create them."""
    for name in names:
        try:
            pwd.getpwnam(name)
        except KeyError:
            raise LabError(f"there is no system user {name}; `useradd --system {name}` creates it") from None


def lab_uids() -> set[int]:
    """Return the UIDs of the users that a lab created on this host."""
    return {uid for name, uid in _MADE.items() if _is_ours(name)}


def create(home: Path) -> None:
    """Create users, groups and home directories; raise LabError if a name is already in use."""
    _refuse_strangers()
    for name, gid in _GIDS.items():
        if not _group_exists(name):
            _run("groupadd", "--gid", str(gid), name)
    if not _user_exists(WEB_USER):
        _run("groupadd", "--gid", str(_WEB_UID), WEB_USER)
        _run(
            *(
                "useradd",
                "--no-create-home",
                "--no-log-init",
                "--no-user-group",
                "--shell",
                "/usr/sbin/nologin",
            ),
            *("--uid", str(_WEB_UID), "--gid", WEB_USER, "--home-dir", "/", "--comment", _MARK, WEB_USER),
        )
    for one in PEOPLE:
        directory = home / one.name
        if not _is_ours(one.name):
            groups = ("--groups", ",".join(one.unix_groups)) if one.unix_groups else ()
            _run(
                *("useradd", "--no-create-home", "--no-log-init", "--no-user-group", "--shell", "/bin/sh"),
                *("--uid", str(one.uid), "--gid", one.name, "--home-dir", str(directory)),
                *("--comment", _MARK, *groups, one.name),
            )
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        os.chown(directory, one.uid, one.uid)


def remove() -> None:
    """Remove the users and groups that ``create`` created; the users' processes must have ended."""
    for name, uid in _UIDS.items():
        if _is_ours(name):
            _run("userdel", name)
            mail = Path("/var/mail") / name
            if mail.exists() and mail.stat().st_uid == uid:
                mail.unlink()
    if _is_ours(WEB_USER):
        _run("userdel", WEB_USER)
    for name, gid in {**_GIDS, WEB_USER: _WEB_UID}.items():
        if _group_exists(name) and grp.getgrnam(name).gr_gid == gid:
            _run("groupdel", name)


def _refuse_strangers() -> None:
    for name, uid in _UIDS.items():
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != uid or entry.pw_gecos != _MARK:
            raise LabError(
                f"a user {name} (uid {entry.pw_uid}) exists here and is not the lab's, but the lab "
                f"needs the names {', '.join(_UIDS)}: run the lab in a container or on another host"
            )
    for name, gid in _GIDS.items():
        if _group_exists(name) and grp.getgrnam(name).gr_gid != gid:
            raise LabError(
                f"a UNIX group {name} (gid {grp.getgrnam(name).gr_gid}) exists here and is not the lab's; "
                "run the lab in a container or on another host"
            )


def _is_ours(name: str) -> bool:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return False
    return entry.pw_gecos == _MARK and entry.pw_uid == _MADE[name]


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _run(*argv: str) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {result.stderr.strip() or f'exit {result.returncode}'}")
