"""Check that Slurm runs job_submit.lua, and that it is the policy of policy.yaml."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.files.access import denies
from slurm_gpu.cli.doctor.checks.files.trusted import others_may_write
from slurm_gpu.cli.doctor.checks.finding import (
    CheckResult,
    DoctorContext,
    fail,
    may_read,
    ok,
    skipped,
    unreadable,
    warn,
)
from slurm_gpu.cli.doctor.checks.slurm.slurm_conf import with_names
from slurm_gpu.cli.doctor.checks.slurm.unread import RESTART, not_read, reads, unread_lines, with_lines
from slurm_gpu.errors import InputError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.policy.language.check import FILE_NAME, load_policy
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.lua.bundle import MARK, STUB_MARK, SiteFacts
from slurm_gpu.policy.lua.in_force import InForce, compare_installed
from slurm_gpu.policy.lua.install import SCRIPT_NAME, made_by
from slurm_gpu.policy.lua.peers import newer_elsewhere
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptError
from slurm_gpu.policy.native.preemption import lacks, return_time_s
from slurm_gpu.policy.native.urgent import lacks as urgent_lacks
from slurm_gpu.slurm.client import has_lua_plugin, has_slurmdbd
from slurm_gpu.text.units import format_duration

_APPLY = "run slurm-gpu policy apply"


def plugin(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm passes each job to a Lua script."""
    if has_lua_plugin(at.settings):
        yield ok("JobSubmitPlugins=lua")
        return
    if not _policy_file(at).exists():
        yield skipped(f"JobSubmitPlugins lacks lua, and {_policy_file(at)} does not exist")
        return
    lacks = fail("JobSubmitPlugins lacks lua, so the policy applies to no job", _APPLY)
    # Without a script, slurmctld would not start. On other hosts, doctor cannot see slurmctld's script.
    first = "" if at.is_controller and _has_script(at) else f"{_APPLY}, then "
    lines = unread_lines(at, "JobSubmitPlugins")
    if lines and has_lua_plugin(with_lines(at.settings, lines)):
        yield not_read(at, lacks, lines, first + RESTART)
        return
    plugins = with_names(at.settings.raw.get("JobSubmitPlugins", ""), ["lua"])
    setting = f"{first}set JobSubmitPlugins={plugins} in slurm.conf and {RESTART}"
    yield dataclasses.replace(lacks, remedy=setting)


def _has_script(at: DoctorContext) -> bool:
    """Return whether job_submit.lua is a policy that `policy apply` wrote."""
    try:
        with _installed(at).open(encoding="utf-8", errors="replace") as file:
            start = file.read(len(STUB_MARK))
    except OSError:
        return False
    return start.startswith(MARK) and start != STUB_MARK


def _installed(at: DoctorContext) -> Path:
    return Path(at.settings.conf_path).parent / SCRIPT_NAME


def script(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that job_submit.lua contains the policy of policy.yaml."""
    if not has_lua_plugin(at.settings):
        yield skipped("slurmctld runs no Lua script")
        return
    installed = _installed(at)
    if not at.is_controller:
        yield _copy(at, installed)
        return
    policy_file = _policy_file(at)
    if hidden := _unreadable(installed, policy_file):
        yield hidden
        return
    if not installed.exists():
        yield fail(f"{installed} is missing: slurmctld cannot start without it", _APPLY)
        return
    yield from others_may_write(at, installed, "slurmctld runs it for every job")
    denied = denies(installed, at.settings.slurm_user_uid)
    if denied is not None:
        yield fail(
            f"SlurmUser {at.settings.slurm_user}, the user of slurmctld, may not read {installed}: "
            f"{denied.part} denies access",
            denied.remedy,
        )
    if not policy_file.exists():
        yield skipped(f"{policy_file} does not exist")
        return
    text = installed.read_text(encoding="utf-8", errors="replace")
    if text.startswith(STUB_MARK):
        yield fail(f"{installed} is the stub that a removal left: the policy applies to no job", _APPLY)
        return
    if not text.startswith(MARK):
        yield fail(
            f"{installed} is not slurm-gpu's: the policy applies to no job",
            _chain_own(installed, policy_file),
        )
        return
    try:
        for version in LUA_VERSIONS:
            PolicyScript(text, lua=version)
    except ScriptError as error:
        yield fail(f"{installed} is broken, and slurmctld may not start again: {error}", _APPLY)
        return
    try:
        policy, source = load_policy(policy_file)
    except InputError as error:
        yield unreadable(error) or fail(
            str(error), f"fix {policy_file}; until then, the active policy remains in effect"
        )
        return
    facts = SiteFacts.of(at.settings, at.nodes, RUN_DIRECTORY, at.site.config.timezone)
    if compare_installed(installed, policy, source, facts, at.site.directory()) is InForce.SAME:
        yield ok(f"{installed} is the policy of {policy_file}")
        return
    maker = made_by(ApplyJournal(at.policy_state), installed) if may_read(at.policy_state) else None
    if maker is not None and Path(maker.policy) != policy_file.absolute():
        yield warn(
            f"{installed} is the policy of {maker.policy}, not of {policy_file}",
            f"{_APPLY} to activate {policy_file}, or restore the applied policy in that file",
        )
    else:
        yield warn(
            f"{installed} is not the policy of {policy_file}: the file, the members of its groups, or "
            "slurm-gpu "
            "has changed",
            _APPLY,
        )


def _copy(at: DoctorContext, installed: Path) -> CheckResult:
    """Check the copy of the script that explain, quota and forecast read on other hosts."""
    copy = f"copy it from slurmctld's host, or share the directory {installed.parent}"
    newer = newer_elsewhere(at.settings, at.host, installed)
    if newer is not None:
        message = f"{installed} differs from the file on {newer.host}, so explain and quota may be wrong"
        return warn(message, copy)
    if installed.exists():
        return skipped("job_submit.lua is checked only on hosts of slurmctld, and this host is not one")
    return skipped(f"{installed} does not exist; to use explain and quota on this host, {copy}")


def _chain_own(installed: Path, policy_file: Path) -> str:
    """Return the remedy that makes the policy's script call the site's own script."""
    own = installed.with_name(f"site_{SCRIPT_NAME}")
    return (
        f"run cp -p {installed} {own}, add `chain: {{before: {own}}}` to {policy_file}, and {_APPLY} "
        "--replace"
    )


@reads("JobRequeue", "AccountingStorageEnforce", "PreemptType", "PreemptMode", remedy=RESTART)
def lending(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm.conf lets lent GPUs return to their owners within the promised time."""
    policy = _policy_here(at, "lending")
    if isinstance(policy, CheckResult):
        yield policy
        return
    if not policy.owners:
        yield skipped(f"{_policy_file(at)} names no owners")
        return
    found = [fail(lack.problem, lack.remedy) for lack in lacks(at.settings, policy.owners)]
    seconds = return_time_s(at.settings)
    yield from found or [ok(f"lent GPUs return within {format_duration(seconds)}")]


@reads(
    "JobRequeue",
    "AccountingStorageEnforce",
    "PreemptType",
    "PreemptMode",
    "PriorityType",
    remedy=RESTART,
)
def urgent(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm.conf lets urgent jobs start before others, and that their number is limited."""
    policy = _policy_here(at, "urgent jobs")
    if isinstance(policy, CheckResult):
        yield policy
    elif policy.urgent is None:
        yield skipped(f"{_policy_file(at)} has no urgent jobs")
    elif not has_slurmdbd(at.settings):
        yield fail("urgent jobs require slurmdbd, which stores their QOS", "remove `urgent:` from the policy")
    else:
        found = [fail(lack.problem, lack.remedy) for lack in urgent_lacks(at.settings, policy)]
        yield from found or [ok(f"urgent jobs start first, at most {policy.urgent.jobs_running} at once")]


def _policy_here(at: DoctorContext, what: str) -> Policy | CheckResult:
    """Return the policy of this host, or a skipped check that names `what` if the policy cannot be read."""
    policy_file = _policy_file(at)
    if not policy_file.exists():
        return skipped(f"{policy_file} does not exist")
    if hidden := _unreadable(policy_file):
        return hidden
    try:
        return load_policy(policy_file)[0]
    except InputError as error:
        return unreadable(error) or skipped(f"{what} cannot be checked until this is fixed: {error}")


def _unreadable(*paths: Path) -> CheckResult | None:
    """Return a skipped check if this user may not read one of the files."""
    for path in paths:
        if os.access(path, os.F_OK) and not os.access(path, os.R_OK):
            return skipped(f"this user may not read {path}; run doctor as root")
    return None


def _policy_file(at: DoctorContext) -> Path:
    return at.policy_file if at.policy_file is not None else at.site.config_path.parent / FILE_NAME
