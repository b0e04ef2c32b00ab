"""`slurm-gpu policy plan|apply|rollback|status`: what puts policy.yaml into force, and takes it back."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.policyfile import PATH, file_argument, policy_path, timezone
from slurm_gpu.cli.policytext import plan_json, plan_lines, step_lines, warning_lines
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.errors import InvalidFileError, OutsideError, UsageError
from slurm_gpu.policy.bundle import RUN_DIRECTORY, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.check import load_policy
from slurm_gpu.policy.decisions import DecisionCounts, count_decisions
from slurm_gpu.policy.force import Force, TakenBack
from slurm_gpu.policy.inforce import InForce, compare_installed
from slurm_gpu.policy.install import (
    SCRIPT_NAME,
    STATE_DIRECTORY,
    prepare_replacement,
    prepare_run_directory,
    try_bundle,
)
from slurm_gpu.policy.journal import Entry, Journal, State
from slurm_gpu.policy.luadata import Plain
from slurm_gpu.policy.model import Policy
from slurm_gpu.policy.names import ResolvedNames, SystemDirectory, resolve_names
from slurm_gpu.policy.native.difference import Difference, Owned
from slurm_gpu.policy.native.plan import NativePlan, plan_native
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.yamlsource import YamlSource

_SCRIPTS = {
    InForce.SAME: "as policy.yaml says",
    InForce.DIFFERENT: "not as policy.yaml says: `slurm-gpu policy apply` installs it",
    InForce.FOREIGN: "not slurm-gpu's: see `slurm-gpu policy apply --replace`",
    InForce.MISSING: "not there: `slurm-gpu policy apply` installs it",
}


def _state_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--state-dir", type=PATH, default=STATE_DIRECTORY, show_default=True,
        envvar="SLURM_GPU_POLICY_STATE", help="Where replaced scripts and old limits are kept.",
    )(command)  # fmt: skip


def _run_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--run-dir", type=PATH, default=RUN_DIRECTORY, show_default=True, envvar="SLURM_GPU_RUN_DIR",
        help="Where slurmctld writes decisions.log.",
    )(command)  # fmt: skip


@dataclass(frozen=True)
class _Loaded:
    """A policy that was checked, with what it needs to know of the cluster."""

    path: Path
    policy: Policy
    source: YamlSource
    names: ResolvedNames
    settings: SlurmSettings
    facts: SiteFacts

    @classmethod
    def read(cls, site: Site, file: Path | None, run_dir: Path) -> _Loaded:
        path = policy_path(site, file)
        settings = site.slurm.settings()
        policy, source = load_policy(path)
        names = resolve_names(policy, source, SystemDirectory())
        if names.unknown:
            raise InvalidFileError(names.unknown)
        facts = SiteFacts.of(settings, site.slurm.nodes(), run_dir.absolute(), timezone(site))
        return cls(path, policy, source, names, settings, facts)

    @property
    def script(self) -> Path:
        return Path(self.settings.conf_path).parent / SCRIPT_NAME

    def compiled(self) -> dict[str, Plain]:
        return compile_policy(self.policy, self.names, self.facts)

    def native(self, site: Site, owned: Iterable[Owned]) -> NativePlan:
        today = dt.datetime.fromtimestamp(site.wall(), ZoneInfo(self.facts.timezone)).date()
        return plan_native(
            self.policy, self.names, self.settings, site.limits, owned, site.slurm.jobs, today,
            SystemDirectory().uid, self.facts.n_gpus,
        )  # fmt: skip

    def in_force(self) -> InForce:
        return compare_installed(self.script, self.policy, self.source, self.facts)


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_state_option
@_run_option
@with_site
def plan(site: Site, file: Path | None, as_json: bool, state_dir: Path, run_dir: Path) -> None:
    """Show what applying FILE would change, limit by limit, and which queued jobs that would strand."""
    loaded = _Loaded.read(site, file, run_dir)
    native = loaded.native(site, _owned(Journal(state_dir), loaded.settings.cluster))
    found = loaded.in_force()
    if as_json:
        print_json({"native": plan_json(native), "script": found.value})
        return
    for line in plan_lines(native):
        click.echo(line)
    replaced = "stays as it is" if found is InForce.SAME else f"would be replaced ({found.value})"
    click.echo(f"{loaded.script}: {replaced}")


@click.command()
@file_argument
@click.option("--dry-run", is_flag=True, help="Do everything but change anything.")
@click.option("--replace", is_flag=True, help="Also replace a job_submit.lua that is not slurm-gpu's.")
@click.option("--lua-only", is_flag=True, help="Leave Slurm's own limits alone, as while slurmdbd is away.")
@_state_option
@_run_option
@with_site
def apply(
    site: Site,
    file: Path | None,
    dry_run: bool,
    replace: bool,
    lua_only: bool,
    state_dir: Path,
    run_dir: Path,
) -> None:
    """Put FILE into force: Slurm's own limits first, job_submit.lua last, and neither if anything fails.

    Run it on each host of slurmctld, again whenever membership of a UNIX group in FILE changes.
    """
    settings = site.slurm.settings()
    if not dry_run and os.geteuid() not in (0, settings.slurm_user_uid):
        raise UsageError(
            f"policy apply writes beside {settings.conf_path}: run it as root or {settings.slurm_user} "
            "(SlurmUser), or try it with --dry-run"
        )
    loaded = _Loaded.read(site, file, run_dir)
    compiled = loaded.compiled()
    bundle = build_bundle(compiled)
    try_bundle(compiled, bundle)
    if "lua" not in settings.raw.get("JobSubmitPlugins", "").split(","):
        remark("warning: slurm.conf lacks JobSubmitPlugins=lua: Slurm will not ask this policy")
    if dry_run:
        owned = _owned(Journal(state_dir), settings.cluster)
        for line in plan_lines(_left_alone(owned) if lua_only else loaded.native(site, owned)):
            click.echo(line)
        click.echo(f"{loaded.path} would be installed as {loaded.script}; nothing was changed")
        return
    prepare_run_directory(run_dir, settings.slurm_user_uid)
    journal = Journal(state_dir, settings.slurm_user_uid, site.wall)
    force = Force(journal, site.limits, _no_rules(run_dir), site.wall)
    with journal.lock():
        recovered = force.recover()
        if recovered is not None:
            _tell_taken_back(recovered, "was cut short, and is undone")
        owned = journal.owned(settings.cluster)
        if lua_only and loaded.policy.owners and not any(one.rule.startswith("owners.") for one in owned):
            raise UsageError("the QOS of owners: are not made by --lua-only, and jobs would be refused")
        native = _left_alone(owned) if lua_only else loaded.native(site, owned)
        replacement = prepare_replacement(
            bundle, loaded.script.parent, state_dir, replace_foreign=replace,
            owner_uid=settings.slurm_user_uid, now=site.wall,
        )  # fmt: skip
        change = native.difference
        done: Entry | None = None
        if replacement is not None or change.steps or native.new_qos or set(change.owned) != set(owned):
            entry = Entry(
                cluster=settings.cluster,
                policy=str(loaded.path.absolute()),
                steps=change.steps,
                owned=change.owned,
            )
            done = force.apply(entry, replacement, native.new_qos)
    _tell_native(native)
    if replacement is None:
        click.echo(f"{loaded.script} is up to date")
    else:
        kept = f"; the previous one is kept as {replacement.previous}" if replacement.previous else ""
        click.echo(f"{loaded.path} is in force: {loaded.script}, read by slurmctld at the next job{kept}")
    if done is not None and done.steps:
        click.echo("`slurm-gpu policy rollback` takes all of it back")


@click.command()
@_state_option
@_run_option
@with_site
def rollback(site: Site, state_dir: Path, run_dir: Path) -> None:
    """Take the last apply back: Slurm's own limits and job_submit.lua become what they were before it.

    Works while slurmctld is down. Called again, it takes back the apply before.
    """
    owner = _owner(state_dir)
    if os.geteuid() not in (0, owner):
        raise UsageError(f"policy rollback reads {state_dir}: run it as root or as SlurmUser")
    journal = Journal(state_dir, owner, site.wall)
    force = Force(journal, site.limits, _no_rules(run_dir), site.wall)
    with journal.lock():
        back = force.recover()
        if back is not None:
            _tell_taken_back(back, "was cut short, and is undone")
            return
        back = force.rollback()
    if back is None:
        raise UsageError(f"there is nothing to roll back: {state_dir} knows of no apply")
    _tell_taken_back(back, "is taken back")
    click.echo(f"{back.entry.policy} itself is unchanged: mend it before the next apply")


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_state_option
@_run_option
@with_site
def status(site: Site, file: Path | None, as_json: bool, state_dir: Path, run_dir: Path) -> None:
    """Compare what is in force with FILE, and show what somebody changed by hand.

    Exit status 1 where anything differs. Decisions are counted as far as decisions.log still holds them.
    """
    loaded = _Loaded.read(site, file, run_dir)
    journal = Journal(state_dir)
    found = loaded.in_force()
    last, begun = journal.newest(State.DONE), journal.newest(State.BEGUN)
    counts = count_decisions(run_dir)
    if not as_json:  # at once: slurmdbd may be away
        click.echo("Never applied" if last is None else f"Applied {last.at} from {last.policy}")
        if begun is not None:
            click.echo(f"An apply of {begun.at} was cut short: `slurm-gpu policy rollback` undoes it")
        click.echo(f"{loaded.script}: {_SCRIPTS[found]}")
        if counts is not None and counts.since_s is not None:
            _print_counts(counts, counts.since_s)
    native = loaded.native(site, journal.owned(loaded.settings.cluster))
    changes = native.difference.steps or native.new_qos or native.drift
    differs = bool(changes or begun) or found is not InForce.SAME
    if as_json:
        print_json(
            {
                "applied": None if last is None else {"at": last.name, "policy": last.policy},
                "cut_short": None if begun is None else begun.name,
                "script": found.value,
                "native": plan_json(native),
                "differs": differs,
                "decisions": None if counts is None else asdict(counts),
            }
        )
    else:
        for line in plan_lines(native):
            click.echo(line)
    if differs:
        raise click.exceptions.Exit(1)


def _print_counts(counts: DecisionCounts, since_s: int) -> None:
    since = dt.datetime.fromtimestamp(since_s, dt.UTC)
    failed = f", {counts.failed} in which a rule failed" if counts.failed else ""
    click.echo(
        f"Decisions since {since:%Y-%m-%d %H:%M:%S} UTC: "
        f"{counts.accepted} accepted, {counts.refused} refused{failed}"
    )
    if counts.rules:
        columns = ("RULE", "REFUSED", "ADVISED", "OBSERVED", "ERRORS")
        rows = [(rule, *map(str, astuple(count))) for rule, count in counts.rules.items()]
        print_table(columns, rows, right=columns[1:])


def _no_rules(run_dir: Path) -> str:
    """The script that lets everything through."""
    return build_bundle(
        compile_policy(Policy(), ResolvedNames(), SiteFacts(run_directory=run_dir.absolute()))
    )


def _owner(state_dir: Path) -> int:
    try:
        return state_dir.stat().st_uid
    except FileNotFoundError:
        raise UsageError(f"there is nothing to roll back: {state_dir} is not there") from None
    except OSError as error:
        raise OutsideError(f"{state_dir}: {error.strerror}") from error


def _owned(journal: Journal, cluster: str) -> tuple[Owned, ...]:
    """The policy's own limits, as far as the caller may know them."""
    if journal.directory.exists() and not os.access(journal.directory, os.R_OK | os.X_OK):
        remark(f"warning: {journal.directory} is for SlurmUser: what was applied before is not known here")
        return ()
    return journal.owned(cluster)


def _left_alone(owned: tuple[Owned, ...]) -> NativePlan:
    return NativePlan(Difference(owned=owned), absent="left as they are (--lua-only)")


def _tell_native(native: NativePlan) -> None:
    if native.absent is not None and native.unheld:
        remark(f"warning: {native.absent}")
    steps = [*map(str, native.new_qos), *step_lines(native.difference.steps)]
    if steps:
        click.echo("Slurm's own limits:")
        for line in steps:
            click.echo(f"  {line}")
    for line in warning_lines(native):
        remark(line)


def _tell_taken_back(back: TakenBack, what: str) -> None:
    click.echo(f"The apply of {back.entry.at} ({back.entry.policy}) {what}")
    for line in step_lines(step.back for step in back.entry.steps):
        click.echo(f"  {line}")
    for line in back.left:
        remark(f"left alone: {line}")
