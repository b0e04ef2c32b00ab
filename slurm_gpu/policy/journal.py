"""Record each `policy apply` before its first step, so it can be undone.

/var/lib/slurm-gpu/policy contains one JSON file per apply, `apply-TIME.json`, and copies of the replaced
scripts. The state `begun` in a file means that the apply is running or was interrupted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from slurm_gpu.errors import OutsideError, outside
from slurm_gpu.files.atomic import write_whole
from slurm_gpu.policy.native.difference import LimitChange, Owned
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind, LimitField
from slurm_gpu.text.cells import utc_stamp

# Number of applies that are kept and can be rolled back.
KEPT = 20
_VERSION = 1


class ApplyState(StrEnum):
    """The progress of an apply."""

    BEGUN = "begun"
    DONE = "done"
    # The apply failed, and all its changes were undone.
    UNDONE = "undone"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The journal entry of one apply."""

    # Time of the apply, such as 20261121T183000Z; "" before the entry is written.
    name: str = ""
    state: ApplyState = ApplyState.BEGUN
    cluster: str
    # The policy file that was applied.
    policy: str
    steps: tuple[LimitChange, ...] = ()
    # The limits in Slurm that the policy owns after the apply.
    owned: tuple[Owned, ...] = ()
    # The job_submit.lua that was replaced or created; None if it was not changed.
    script: Path | None = None
    # A copy of the previous script; None if there was none.
    previous: Path | None = None
    # SHA-256 of the new script.
    digest: str = ""

    @property
    def at(self) -> str:
        """Return the time of the apply for display."""
        n = self.name
        return f"{n[:4]}-{n[4:6]}-{n[6:8]} {n[9:11]}:{n[11:13]}:{n[13:15]} UTC"


class ApplyJournal:
    """The applies of one host; methods raise OutsideError if files cannot be read or written."""

    def __init__(self, directory: Path, owner_uid: int = 0, now: Callable[[], float] = time.time) -> None:
        self.directory, self._owner_uid, self._now = directory, owner_uid, now

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Exclude every other apply and rollback on this host until the lock is released."""
        return self._lock("lock", "`slurm-gpu policy apply` or `rollback`")

    def adjust_lock(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other runs of `policy adjust` on this host; each run also takes `lock`."""
        return self._lock("adjust-lock", "`slurm-gpu policy adjust`")

    @contextlib.contextmanager
    def _lock(self, name: str, of: str) -> Iterator[None]:
        make_state_directory(self.directory, self._owner_uid)
        with outside(self.directory / name):
            file = (self.directory / name).open("w")
            if os.geteuid() == 0:  # otherwise SlurmUser could not open the file later
                os.fchown(file.fileno(), self._owner_uid, -1)
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutsideError(f"another {of} is running on this host") from None
            yield

    def entries(self) -> list[Entry]:
        """Return all stored entries, the oldest first."""
        try:
            files = [file for file in self.directory.iterdir() if file.match("apply-*.json")]
            return sorted(map(_read, files), key=lambda entry: _age(entry.name))
        except FileNotFoundError:
            return []
        except PermissionError:
            raise OutsideError(f"{self.directory} cannot be read: run this as root or SlurmUser") from None
        except OSError as error:
            raise OutsideError(f"{error.filename}: {error.strerror}") from error

    def newest(self, *states: ApplyState) -> Entry | None:
        """Return the last entry in one of these states; None if there is none."""
        return next((entry for entry in reversed(self.entries()) if entry.state in states), None)

    def taken_back(self) -> list[Entry]:
        """Return the rolled-back applies that are newer than the apply in force, the oldest first."""
        found: list[Entry] = []
        for entry in reversed(self.entries()):
            if entry.state is ApplyState.DONE:
                break
            if entry.state is ApplyState.ROLLED_BACK:
                found.append(entry)
        return found[::-1]

    def owned(self, cluster: str) -> tuple[Owned, ...]:
        """Return the limits in Slurm that the policy in force has set."""
        for entry in reversed(self.entries()):
            if entry.state is ApplyState.DONE and entry.cluster == cluster:
                return entry.owned
        return ()

    def begin(self, entry: Entry) -> Entry:
        """Write the entry of an apply that is about to start; return the entry with its name."""
        stamp, number = utc_stamp(self._now()), 0
        if entries := self.entries():
            newest, last = _age(entries[-1].name)
            if stamp <= newest:  # a second apply in one second, or the clock was set back
                stamp, number = newest, last + 1
        name = f"{stamp}.{number}" if number else stamp
        entry = replace(entry, name=name, state=ApplyState.BEGUN)
        self._write(entry)
        return entry

    def mark(self, entry: Entry, state: ApplyState) -> Entry:
        """Write the new state of an entry, and return the updated entry."""
        entry = replace(entry, state=state)
        self._write(entry)
        if state is ApplyState.DONE:
            self._prune()
        return entry

    def _write(self, entry: Entry) -> None:
        file = self._file(entry)
        with outside(file):
            write_whole(file, json.dumps(_plain(entry), indent=1) + "\n", owner_uid=self._owner_uid)

    def _file(self, entry: Entry) -> Path:
        return self.directory / f"apply-{entry.name}.json"

    def _prune(self) -> None:
        entries = self.entries()
        # Keep applies that are in force or that a rollback restores, regardless of later failed applies.
        done = [entry for entry in entries if entry.state is ApplyState.DONE][-KEPT:]
        with contextlib.suppress(OSError):  # a failure here must not undo a completed apply
            for entry in entries[:-KEPT]:
                if entry not in done:
                    self._file(entry).unlink(missing_ok=True)


def make_state_directory(directory: Path, owner_uid: int) -> None:
    """Create the directory for the journal and copies of scripts, accessible only to SlurmUser."""
    with outside(directory):
        if not directory.exists():
            directory.mkdir(mode=0o700, parents=True)
            os.chown(directory, owner_uid, -1)


def _age(name: str) -> tuple[str, int]:
    stamp, _, number = name.partition(".")
    return stamp, int(number) if number.isdigit() else 0


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "state": str(entry.state),
        "cluster": entry.cluster,
        "policy": entry.policy,
        "script": None if entry.script is None else str(entry.script),
        "previous": None if entry.previous is None else str(entry.previous),
        "digest": entry.digest,
        "steps": [[*_target(one.entity, one.limit), one.old, one.new, one.rule] for one in entry.steps],
        "owned": [[*_target(one.entity, one.limit), one.value, one.before, one.rule] for one in entry.owned],
    }


def _target(entity: Entity, limit: LimitField) -> list[str]:
    return [str(entity.kind), entity.name, entity.user, limit.name, limit.item]


def _read(file: Path) -> Entry:
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        if plain["version"] != _VERSION:
            raise OutsideError(f"{file} was written by another version of slurm-gpu ({plain['version']})")
        return Entry(
            name=file.stem.removeprefix("apply-"),
            state=ApplyState(plain["state"]),
            cluster=plain["cluster"],
            policy=plain["policy"],
            script=None if plain["script"] is None else Path(plain["script"]),
            previous=None if plain["previous"] is None else Path(plain["previous"]),
            digest=plain["digest"],
            steps=tuple(
                LimitChange(_entity(row), LimitField(row[3], row[4]), row[5], row[6], row[7])
                for row in plain["steps"]
            ),
            owned=tuple(
                Owned(_entity(row), LimitField(row[3], row[4]), row[5], row[6], row[7])
                for row in plain["owned"]
            ),
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise OutsideError(
            f"{file} cannot be read ({error}); it records the changes of an apply: repair the file, or move "
            "it away"
        ) from error


def _entity(row: list[Any]) -> Entity:
    return Entity(EntityKind(row[0]), row[1], row[2])
