"""Install a bundle for slurmctld: test it, replace the script atomically, and keep the old script."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.errors import OutsideError, UsageError, outside
from slurm_gpu.files.atomic import whole_file
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry, make_state_directory
from slurm_gpu.policy.language.hour_sums import sums_of
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.membership import example_of
from slurm_gpu.policy.lua.bundle import DECISIONS_LOG, MARK
from slurm_gpu.policy.lua.script import (
    LUA_VERSIONS,
    PolicyScript,
    ScalarFields,
    ScriptDecision,
    ScriptError,
    linked_lua,
)
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.text.cells import utc_stamp

SCRIPT_NAME = "job_submit.lua"
STATE_DIRECTORY = Path("/var/lib/slurm-gpu/policy")
# Number of previous bundles that are kept; copies of the site's own scripts are never removed.
KEPT = 20

# The settings that distinguish the rules of groups of different shapes.
_KIND_OF_RULE = ("per", "mode", "on_error", "kind", "when", "hard", "carry_over", "jobs")
# Number of groups of each shape that are tested; more would take seconds.
_GROUPS_OF_A_SHAPE = 10

_ENVIRONMENT = {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "USER": "trial"}
# A UID that no policy names.
_STRANGER = 65533
_TRIALS: tuple[dict[str, str | int], ...] = (
    {"num_tasks": 4},
    {"tres_per_job": "gres:gpu:a100:100000", "time_limit": 60},
    {"tres_per_node": "gres/gpu:8,gres/shard:3", "min_nodes": 4, "array_inx": "0-9:3%2", "time_limit": 1},
)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A bundle that is ready for installation, and the script that the bundle replaces."""

    bundle: str
    script: Path
    # The copy of the replaced script; None if there was no script.
    previous: Path | None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the bundle."""
        return hashlib.sha256(self.bundle.encode()).hexdigest()


def try_bundle(
    compiled: Mapping[str, Plain],
    bundle: str,
    now: Callable[[], float] = time.time,
    settings: SlurmSettings | None = None,
) -> list[str]:
    """Test the bundle with jobs of every kind of group, in every version of Lua that Slurm may use.

    All versions get the same time and the same files. Otherwise their results could differ if a job is
    admitted or the clock advances between two tests. A bundle with a script under `chain:` is tested only in
    the version of slurmctld's plugin or, if the plugin is not on this host, in the first version in which the
    bundle passes.

    Return notes on modules and commands that a chained script uses but this test lacks. Raise OutsideError if
    the bundle does not load, raises or logs an error, or decides differently in two versions.
    """
    groups = _tables(compiled["groups"])
    owners = [_STRANGER_OWNER, *(_member(group, groups) for group in _groups_to_test(compiled))]
    is_chained = any(compiled.get(f"chain_{place}") for place in ("before", "after"))
    linked = linked_lua(settings) if is_chained else None
    results: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    notes: dict[str, None] = {}
    moment = int(now())
    failure: ScriptError | None = None
    for version in (linked,) if linked else LUA_VERSIONS:
        try:
            results[version] = [
                result
                for files in _trial_files(compiled, moment)
                for result in _decisions(
                    PolicyScript(bundle, lua=version, files=files, now=lambda: moment, settings=settings),
                    owners,
                    _partitions(compiled) if is_chained else (),
                    notes,
                )
            ]
        except ScriptError as error:
            failure = failure or error
        if is_chained and results:
            break
    if failure is not None and not (is_chained and results):
        raise OutsideError(f"the bundle failed its test and was not installed: {failure}") from failure
    first, *others = results.items()
    for version, result in others:
        if result != first[1]:
            raise OutsideError(
                f"the bundle decides differently in Lua {first[0]} and {version}; it was not installed"
            )
    return list(notes)


def _decisions(
    script: PolicyScript,
    owners: Iterable[dict[str, str | int]],
    partitions: Iterable[str],
    notes: dict[str, None],
) -> list[tuple[int, tuple[str, ...]]]:
    """Return the decisions on jobs of these owners; stop at an error that the test itself may have caused."""
    results = []
    for owner in owners:
        try:
            results += _trial(script, owner, partitions)
        except ScriptError as error:
            what = f"{error} (a test job of account {owner['account']} in partition {owner['partition']})"
            if not script.not_here:
                raise ScriptError(what) from error
            script.not_here[f"the test of this script ended early: {what}"] = None
            break
    notes.update(script.not_here)
    return results


def _trial_files(compiled: Mapping[str, Plain], moment: int) -> list[dict[str, str | None]]:
    """Return the files that the bundle reads in each test, first with an empty snapshot and then without one.

    In both cases no job was admitted recently. A policy with limits on hours by period is tested only with a
    snapshot, because the bundle reports an error if it cannot check these limits.
    """
    path, groups_id = compiled.get("snapshot"), compiled.get("groups_id")
    logs = (compiled.get("decisions_log"), compiled.get("job_state"))
    nothing: dict[str, str | None] = {log: None for log in logs if isinstance(log, str)}
    if not isinstance(path, str):
        return [nothing]
    header = f"slurm-gpu-snapshot 1 1 {moment}"
    sums = sorted(
        {
            key
            for rule in _tables(compiled["rules"])
            for key in sums_of((limit for limit, _ in _limits(rule)), carry_over=bool(rule["carry_over"]))
        }
    )
    starts = " ".join(f"{key.removeprefix('gpu_h_')}=0" for key in sums)
    empty_snapshot = nothing | {path: f"{header}\ngroups {groups_id}\nhours {starts}\nend 1\n"}
    return [empty_snapshot] if sums else [empty_snapshot, nothing | {path: None}]


def _limits(rule: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return all limits of a rule and of its exceptions, with their keys."""
    exceptions = rule.get("exceptions") or {}
    return [pair for limits in (rule, *exceptions.values()) for pair in limits["limits"].items()]


def _groups_to_test(compiled: Mapping[str, Plain]) -> Iterator[Mapping[str, Any]]:
    """Yield the first groups of each shape; groups of one shape differ only in names and numbers."""
    shapes_of_rules: dict[int, set[Hashable]] = {}
    for rule in _tables(compiled["rules"]):
        settings = [str(rule[key]) for key in _KIND_OF_RULE]
        limits = {(key, type(value)) for key, value in _limits(rule)}
        shapes_of_rules.setdefault(rule["group"], set()).add((*settings, frozenset(limits)))
    seen: Counter[Hashable] = Counter()
    for number, group in enumerate(_tables(compiled["groups"]), 1):
        conditions = frozenset(key for key, value in group.items() if value is not None)
        shape = (conditions, frozenset(shapes_of_rules.get(number, ())))
        seen[shape] += 1
        if seen[shape] <= _GROUPS_OF_A_SHAPE:
            yield group


_STRANGER_OWNER: dict[str, str | int] = {
    "user_id": _STRANGER,
    "account": "trial",
    "qos": "normal",
    "partition": "trial",
}


def _partitions(compiled: Mapping[str, Plain]) -> list[str]:
    """Return the partitions of the cluster, which the site's own script may read."""
    known = compiled.get("partition_cpus")
    return [str(name) for name in known] if isinstance(known, Mapping) else []


def _tables(value: Plain) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _member(group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, str | int]:
    """Return the user, account, QOS and partition of a job in the group, if such a job is easily found.

    If no user satisfies all conditions of the group, return a user that no policy names.
    """
    users, members = group.get("uids"), group.get("member_uids")
    uids = [uid for uid in (users or members or {}) if members is None or uid in members]
    owner = dict(_STRANGER_OWNER)
    for number in group.get("all_of") or ():
        owner |= {k: v for k, v in _member(groups[number - 1], groups).items() if v != _STRANGER_OWNER[k]}
    if uids:
        owner["user_id"] = uids[0]
    for field, key in (("account", "accounts"), ("qos", "qos"), ("partition", "partitions")):
        if group.get(key):
            owner[field] = example_of(next(iter(group[key])))
    return owner


def _trial(
    script: PolicyScript, owner: dict[str, str | int], partitions: Iterable[str]
) -> list[tuple[int, tuple[str, ...]]]:
    job: ScalarFields = {
        **owner,
        "name": "trial",
        "user_name": "trial",
        "group_id": _STRANGER,
        "alloc_node": "trial",
        "work_dir": "/tmp",
        "std_in": "/dev/null",
        "default_account": owner["account"],
        "default_qos": owner["qos"],
        "assoc_qos": owner["qos"],
    }
    base = {**job, "script": "#!/bin/sh", "argc": 1, "argv": {0: "job.sh"}, "environment": _ENVIRONMENT}
    partition: ScalarFields = {
        "name": owner["partition"],
        "flag_default": 1,
        "flags": 1,
        "default_time": 60,
        "max_time": 600,
        "nodes": "trial",
        "total_nodes": 1,
        "total_cpus": 8,
    }
    record: ScalarFields = {
        **job,
        "job_id": 1,
        "job_state": 0,
        "min_nodes": 1,
        "time_limit": 60,
        "tres_per_node": "gres:gpu:1",
        "priority": 1000,
        "submit_time": 1,
        "tres_req_str": "1=1,2=1024,4=1,5=1",
    }
    rows = [*({**partition, "name": name, "flag_default": 0, "flags": 0} for name in partitions), partition]
    script.set_jobs([record])
    verdicts = [script.submit({**base, **fields}, rows) for fields in _TRIALS]
    verdicts.append(script.modify({"min_nodes": 8}, record, rows))
    for verdict in verdicts:
        _complain(verdict)
    return [(verdict.code, verdict.messages) for verdict in verdicts]


def _complain(verdict: ScriptDecision) -> None:
    for level, text in verdict.log:
        if level == "error" and text.startswith("slurm-gpu: "):  # other errors come from a site's own script
            raise ScriptError(text)


def prepare_replacement(
    bundle: str,
    directory: Path,
    state_directory: Path,
    *,
    replace_foreign: bool = False,
    owner_uid: int = 0,
    now: Callable[[], float] = time.time,
) -> Replacement | None:
    """Copy the job_submit.lua in `directory` to `state_directory` before the bundle replaces it.

    Return None if the installed script is already this bundle. Raise UsageError if the script is the site's
    own and `replace_foreign` is not set, and OutsideError if files cannot be read or written.
    """
    script = directory / SCRIPT_NAME
    with outside(script, "; nothing was installed"):
        old = script.read_bytes() if script.exists() else None
        if old is not None and not old.startswith(MARK.encode()) and not replace_foreign:
            raise UsageError(
                f"{script} is not slurm-gpu's; to keep using it, copy it and name the copy under `chain:` in "
                "policy.yaml. Then use --replace, which also keeps a copy"
            )
        if old == bundle.encode():
            return None
        previous = _keep(script, state_directory, owner_uid, now) if old is not None else None
    return Replacement(bundle, script, previous)


def install(replacement: Replacement, now: Callable[[], float] = time.time) -> None:
    """Install the bundle as slurmctld's script; raise OutsideError if it cannot be written."""
    _put(replacement.bundle.encode(), replacement.script, now)


def is_installed(script: Path, digest: str) -> bool:
    """Return whether the script still has this SHA-256."""
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest() == digest
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OutsideError(f"{script}: {error.strerror}") from error


def made_by(journal: ApplyJournal, script: Path) -> Entry | None:
    """Return the journal entry of the apply that wrote the current script; None if no apply wrote it.

    An apply that changes only Slurm's own limits does not write a script.
    """
    done = [entry for entry in journal.entries() if entry.state is ApplyState.DONE and entry.script == script]
    return done[-1] if done and is_installed(script, done[-1].digest) else None


def restore(previous: Path | None, script: Path, no_rules: str, now: Callable[[], float] = time.time) -> None:
    """Restore the previous script, or install a bundle without rules if there was no script.

    A bundle without rules is installed because slurmctld does not start without a script.
    """
    with outside(previous, f"; {script} was not changed"):
        content = no_rules.encode() if previous is None else previous.read_bytes()
    _put(content, script, now)


def _put(content: bytes, script: Path, now: Callable[[], float]) -> None:
    """Replace the script by an atomic rename.

    slurmctld loads a script only if its modification time, in whole seconds, is later than that of the
    running script. The new script therefore gets a later modification time than the old script.
    """
    with outside(script, "; nothing was installed"):
        newer = int(now())
        if script.exists():
            newer = max(newer, int(script.stat().st_mtime) + 1)
        _swap_in(content, script, newer)


def prepare_run_directory(directory: Path, owner_uid: int) -> None:
    """Create the directory and decisions.log; only slurmctld can read and write the log."""
    log = directory / DECISIONS_LOG
    with outside(log):
        if not directory.exists():
            directory.mkdir(mode=0o755, parents=True)
            os.chown(directory, owner_uid, -1)
        log.touch(mode=0o600)
        os.chown(log, owner_uid, -1)


def put_aside(state_directory: Path) -> Path | None:
    """Return the copy of the last site script that a bundle replaced; None if no site script was replaced.

    Raise OutsideError if copies cannot be read.
    """
    with outside():
        return next((copy for copy in reversed(_copies(state_directory)) if not _has_mark(copy)), None)


def _keep(script: Path, state_directory: Path, owner_uid: int, now: Callable[[], float]) -> Path:
    """Return a copy of the script; make a new copy only if the last one differs from the script.

    Old copies of bundles are deleted; copies of the site's own scripts are kept.
    """
    make_state_directory(state_directory, owner_uid)
    copies = _copies(state_directory)
    for last in (copies[-1] if copies else None, None if _has_mark(script) else put_aside(state_directory)):
        if last is not None and last.read_bytes() == script.read_bytes():
            return last
    stamp = utc_stamp(now())
    kept = state_directory / f"job_submit-{stamp}.lua"
    number = 1
    while kept.exists():
        kept = state_directory / f"job_submit-{stamp}.{number}.lua"
        number += 1
    shutil.copy2(script, kept)
    for stale in [copy for copy in [*copies, kept] if _has_mark(copy)][:-KEPT]:
        stale.unlink()
    return kept


def _copies(state_directory: Path) -> list[Path]:
    """Return the copies of previous scripts, the oldest first."""
    return sorted(state_directory.glob("job_submit-*.lua"))


def _has_mark(script: Path) -> bool:
    with script.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def _swap_in(content: bytes, script: Path, mtime: int) -> None:
    """Write a new file next to the script and rename it, so slurmctld never reads a partial script."""
    with whole_file(script) as fresh:
        fresh.write_bytes(content)
        fresh.chmod(0o644)
        os.utime(fresh, (mtime, mtime))
