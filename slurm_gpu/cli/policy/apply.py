"""`slurm-gpu policy plan`, `apply` and `rollback`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.policy.file import file_argument
from slurm_gpu.cli.policy.loaded import LoadedPolicy, owned_by_policy, run_option, state_option
from slurm_gpu.cli.policy.native_text import (
    done_lines,
    plan_json,
    plan_lines,
    step_lines,
    stranded_lines,
    warning_lines,
)
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.policy.apply import PolicyInstaller, Rollback
from slurm_gpu.policy.journal import ApplyJournal, Entry
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.in_force import InForce
from slurm_gpu.policy.lua.install import prepare_replacement, prepare_run_directory, try_bundle
from slurm_gpu.policy.lua.peers import (
    controllers,
    differing_hosts,
    is_backup,
    shared_file_system,
    this_host,
    write_report,
)
from slurm_gpu.policy.native.difference import Difference, Owned
from slurm_gpu.policy.native.plan import NO_SLURMDBD, NativePlan
from slurm_gpu.policy.native.stranded import stranded
from slurm_gpu.slurm.client import SlurmSettings, has_lua_plugin


@click.command(short_help="Show the changes that apply would make.")
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@state_option
@run_option
@with_site
def plan(site: CommandSite, file: Path | None, as_json: bool, state_dir: Path, run_dir: Path) -> None:
    """Show each limit that applying FILE would change, and each pending job that could then never start."""
    loaded = LoadedPolicy.read(site, file, run_dir)
    native = loaded.native(site, owned_by_policy(ApplyJournal(state_dir), loaded.settings.cluster))
    found = loaded.in_force()
    if as_json:
        print_json({"native": plan_json(native), "script": found.value})
        return
    for line in plan_lines(native):
        click.echo(line)
    replaced = "remains as it is" if found is InForce.SAME else f"would be replaced ({found.value})"
    click.echo(f"{loaded.script}: {replaced}")


@click.command(short_help="Apply FILE: first limits in slurmdbd, then job_submit.lua.")
@file_argument
@click.option("--dry-run", is_flag=True, help="Check everything without changing anything.")
@click.option("--replace", is_flag=True, help="Also replace a job_submit.lua that is not slurm-gpu's.")
@click.option(
    "--lua-only", is_flag=True, help="Do not change limits in slurmdbd, for example while it is down."
)
@state_option
@run_option
@with_site
def apply(
    site: CommandSite,
    file: Path | None,
    dry_run: bool,
    replace: bool,
    lua_only: bool,
    state_dir: Path,
    run_dir: Path,
) -> None:
    """Apply FILE: first limits in slurmdbd, then job_submit.lua; undo both on failure.

    Run this command on each slurmctld host, and again whenever the members of a UNIX group in FILE
    change. The whole cluster shares the limits in slurmdbd, so a backup host does not change them.
    """
    settings = site.slurm.settings()
    backup = is_backup(settings, this_host())
    lua_only = lua_only or backup
    if not dry_run and os.geteuid() not in (0, settings.slurm_user_uid):
        raise UsageError(
            f"policy apply writes next to {settings.conf_path}: run it as root or {settings.slurm_user} "
            "(SlurmUser), or try it with --dry-run"
        )
    if dry_run:
        loaded, _ = _tried(site, file, run_dir)
        owned = owned_by_policy(ApplyJournal(state_dir), settings.cluster)
        for line in plan_lines(_left_alone(owned, backup) if lua_only else loaded.native(site, owned)):
            click.echo(line)
        click.echo(f"{loaded.path} would be installed as {loaded.script}; nothing was changed")
        return
    journal = ApplyJournal(state_dir, settings.slurm_user_uid, site.wall)
    installer = PolicyInstaller(journal, site.limits, _no_rules(run_dir), site.wall)
    # `policy adjust` also applies FILE: read FILE only when no other apply can run.
    with journal.lock():
        loaded, bundle = _tried(site, file, run_dir)
        prepare_run_directory(run_dir, settings.slurm_user_uid)
        recovered = installer.recover()
        if recovered is not None:
            _print_rollback(recovered, "was interrupted and has been undone")
        owned = journal.owned(settings.cluster)
        lends = any(one.rule.startswith("owners.") for one in owned)
        if lua_only and not backup and loaded.policy.owners and not lends:
            raise UsageError(
                "--lua-only does not create the QOS of owners:, so Slurm would refuse jobs that use them"
            )
        native = _left_alone(owned, backup) if lua_only else loaded.native(site, owned)
        replacement = prepare_replacement(
            bundle,
            loaded.script.parent,
            state_dir,
            replace_foreign=replace,
            owner_uid=settings.slurm_user_uid,
            now=site.wall,
        )
        change = native.difference
        done: Entry | None = None
        if replacement is not None or change.steps or native.new_qos or set(change.owned) != set(owned):
            entry = Entry(
                cluster=settings.cluster,
                policy=str(loaded.path.absolute()),
                steps=change.steps,
                owned=change.owned,
            )
            done = installer.apply(entry, replacement, native.new_qos)
    _print_native(native)
    if replacement is None:
        click.echo(f"{loaded.script} is up to date")
    else:
        kept = f"; the previous one is kept as {replacement.previous}" if replacement.previous else ""
        when = (
            f"is active: slurmctld reads {loaded.script} when the next job is submitted"
            if has_lua_plugin(settings)
            else f"was written to {loaded.script}; to use it, set JobSubmitPlugins=lua and restart slurmctld"
        )
        click.echo(f"{loaded.path} {when}{kept}")
    if done is not None and done.steps:
        click.echo("`slurm-gpu policy rollback` undoes all of this")
    _report_to_peers(site, settings, loaded.script)


def _tried(site: CommandSite, file: Path | None, run_dir: Path) -> tuple[LoadedPolicy, str]:
    """Load and compile FILE, and test its script in every version of Lua that slurmctld may use."""
    loaded = LoadedPolicy.read(site, file, run_dir)
    compiled = loaded.compiled()
    bundle = build_bundle(compiled)
    for note in try_bundle(compiled, bundle, settings=loaded.settings):
        remark(f"note: {note}")
    if not has_lua_plugin(loaded.settings):
        remark("warning: slurm.conf lacks JobSubmitPlugins=lua, so Slurm does not use this policy")
    return loaded, bundle


@click.command(short_help="Undo the last apply.")
@state_option
@run_option
@with_site
def rollback(site: CommandSite, state_dir: Path, run_dir: Path) -> None:
    """Undo the last apply: restore the limits in slurmdbd and job_submit.lua.

    The rollback also works while slurmctld is down. Run the command again to undo the apply before the last.
    """
    owner = _owner(state_dir)
    if os.geteuid() not in (0, owner):
        raise UsageError(f"policy rollback reads {state_dir}: run it as root or as SlurmUser")
    journal = ApplyJournal(state_dir, owner, site.wall)
    installer = PolicyInstaller(journal, site.limits, _no_rules(run_dir), site.wall)
    with journal.lock():
        back = installer.recover()
        if back is not None:
            _print_rollback(back, "was interrupted and has been undone")
            _print_stranded(site, back)
            return
        back = installer.rollback()
    if back is None:
        raise UsageError(f"nothing to roll back: {state_dir} has no record of an apply")
    _print_rollback(back, "has been rolled back")
    _print_stranded(site, back)
    click.echo(f"{back.entry.policy} itself is unchanged: apply it again to activate it")


def _no_rules(run_dir: Path) -> str:
    """Return the script that accepts every job."""
    return build_bundle(
        compile_policy(Policy(), ResolvedNames(), SiteFacts(run_directory=run_dir.absolute()))
    )


def _owner(state_dir: Path) -> int:
    try:
        return state_dir.stat().st_uid
    except FileNotFoundError:
        raise UsageError(f"nothing to roll back: {state_dir} does not exist") from None
    except OSError as error:
        raise OutsideError(f"{state_dir}: {error.strerror}") from error


def _left_alone(owned: tuple[Owned, ...], backup: bool) -> NativePlan:
    why = "this is a backup host of slurmctld" if backup else "--lua-only"
    return NativePlan(Difference(owned=owned), absent=f"left as they are ({why})")


def _report_to_peers(site: CommandSite, settings: SlurmSettings, script: Path) -> None:
    """Report this host's script to other hosts, and warn about hosts of slurmctld that lack it."""
    if "StateSaveLocation" not in settings.raw:
        return
    here, has_peers = this_host(), len(controllers(settings)) > 1 and shared_file_system(script) is None
    try:
        write_report(settings, here, script, site.wall())
        others = [host for host, _ in differing_hosts(settings, here, script)]
    except OutsideError as error:
        unknown = (
            "cannot check whether the other hosts of slurmctld have this policy"
            if has_peers
            else f"on other hosts, explain and quota cannot recognise an old copy of {script.name}"
        )
        remark(f"warning: {unknown}: {error}")
        return
    for host in others if has_peers else ():
        remark(
            f"warning: slurmctld may also run on {host}, whose {script.name} is missing or different: "
            f"run `slurm-gpu policy apply` on {host} with the same policy.yaml"
        )


def _print_native(native: NativePlan) -> None:
    if native.absent is not None and (native.unenforced or native.absent == NO_SLURMDBD):
        remark(f"warning: {native.absent}")
    done = done_lines(native)
    if done:
        click.echo("Slurm's own limits:")
        for line in done:
            click.echo(f"  {line}")
    for line in warning_lines(native):
        remark(line)


def _print_rollback(back: Rollback, what: str) -> None:
    click.echo(f"The apply of {back.entry.at} ({back.entry.policy}) {what}")
    for line in step_lines(back.steps):
        click.echo(f"  {line}")
    if back.script_is_back and back.entry.previous is not None:
        click.echo(f"{back.entry.script} was restored")
    elif back.script_is_back:
        click.echo(
            f"{back.entry.script} now accepts every job. The file did not exist before the apply, but "
            "slurmctld does not start without it while slurm.conf has JobSubmitPlugins=lua."
        )
    for line in back.left:
        remark(f"left alone: {line}")


def _print_stranded(site: CommandSite, back: Rollback) -> None:
    """Print the pending jobs that the restored limits prevent from starting, if the queue can be read."""
    if not back.steps:
        return
    try:
        lines = [*stranded_lines(stranded(site.slurm.jobs(), back.found, back.steps))]
    except OutsideError as error:
        lines = [f"cannot check whether queued jobs can still start: {error}"]
    for line in lines:
        remark(line)
