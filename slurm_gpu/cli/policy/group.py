"""`slurm-gpu policy check` and `show`; other commands of the group have their own modules."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import console
from slurm_gpu.cli.policy.adjust import adjust
from slurm_gpu.cli.policy.apply import apply, plan, rollback
from slurm_gpu.cli.policy.file import apply_command, existing_policy, file_argument, timezone
from slurm_gpu.cli.policy.replay import replay
from slurm_gpu.cli.policy.status import status
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.config.site import Placement
from slurm_gpu.config.yaml_source import YamlSource
from slurm_gpu.errors import InputError, OutsideError
from slurm_gpu.policy.dead_rules import find_doubts
from slurm_gpu.policy.language.account_trees import with_listed
from slurm_gpu.policy.language.adjustments import moves_path
from slurm_gpu.policy.language.check import load_moved, load_policy
from slurm_gpu.policy.language.cluster_names import unknown_to_cluster
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import resolve_names, unmanaged_accounts
from slurm_gpu.policy.language.tiers import whole_rules, written_groups
from slurm_gpu.policy.lua.bundle import SiteFacts
from slurm_gpu.policy.lua.in_force import InForce, compare_installed
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.policy.native.plan import read_accounting
from slurm_gpu.policy.native.preemption import broken_promises
from slurm_gpu.policy.native.unknown_names import unknown_to_slurmdbd
from slurm_gpu.policy.pages.html import render_html
from slurm_gpu.policy.pages.markdown import render_markdown
from slurm_gpu.policy.pages.page import make_page, reservation_section
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.policy.pages.text import WIDTH, render_text
from slurm_gpu.slurm.client import has_slurmdbd

_PAGES = {"markdown": render_markdown, "html": render_html}


@click.group()
def policy() -> None:
    """Check, apply, show and replay policy.yaml."""


for _command in (plan, apply, rollback, status, replay, adjust):
    policy.add_command(_command)


@policy.command(short_help="Check FILE, and print all errors.")
@file_argument
@with_site
def check(site: CommandSite, file: Path | None) -> None:
    """Check FILE, and print every error with line and column.

    FILE defaults to policy.yaml next to slurm-gpu.yaml. The exit code is 1 if there are errors.
    """
    try:
        path = existing_policy(site, file)
        moved, source = load_moved(path)
    except InputError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(1) from None
    checked = moved.policy
    for move, why in moved.void:
        click.echo(f"warning: {moves_path(path)}: {move} no longer applies: {why}", err=True)
    # Unknown names are errors in apply, but only warnings here: this host may lack the cluster's users.
    names = resolve_names(checked, source, site.directory())
    today = dt.datetime.now(tz=ZoneInfo(timezone(site))).date()
    doubts = (
        *unmanaged_accounts(checked, source),
        *_unknown_to_cluster(site, checked, source),
        *_unknown_to_slurmdbd(site, checked, source),
        *_broken_promises(site, checked, source),
        *find_doubts(with_listed(checked, names), names, source, today),
        *_missing_scripts(checked, source),
    )
    for warning in (*names.unknown, *doubts):
        click.echo(f"warning: {warning}", err=True)
    stand_for_urgent = 0 if checked.urgent is None else 1
    n_rules = len(whole_rules(checked)) - stand_for_urgent
    n_groups = len(written_groups(checked)) - stand_for_urgent
    click.echo(f"{path}: no errors; rules: {n_rules}, groups: {n_groups}")


@policy.command(short_help="Show the rules of FILE, with their reasons.")
@file_argument
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "markdown", "html"]),
    default="text",
    show_default=True,
    help="Output format: for a terminal, a wiki, or a web page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (keys: docs/commands.md).")
@with_site
def show(site: CommandSite, file: Path | None, style: str, as_json: bool) -> None:
    """Show the rules of FILE with their reasons, and warn if slurmctld uses another policy."""
    path = existing_policy(site, file)
    checked, source = load_policy(path)
    found = _in_force(site, checked, source)
    if as_json:
        in_force = None if found in (None, InForce.MISSING) else found is InForce.SAME
        shown = to_json(checked) | {"in_force": in_force, "reservation": _reservation_rule(site)}
        click.echo(json.dumps(shown, indent=2))
        return
    warning = _warning(found, path, file)
    if warning is not None:
        # Keep the warning out of pages, which may be published.
        click.echo(f"{warning}\n" if style == "text" else warning, err=style != "text")
    rule = _reservation_rule(site)
    today = dt.datetime.fromtimestamp(site.wall(), ZoneInfo(timezone(site))).date()
    page = make_page(checked, () if rule is None else (reservation_section(**rule),), today)
    if style == "text":
        click.echo(render_text(page, min(WIDTH, console().width)))
    else:
        click.echo(_PAGES[style](page))


class _ReservationRule(TypedDict):
    """The object `reservation` in the output of `policy show --json`."""

    required_gpus: int
    mode: str


def _reservation_rule(site: CommandSite) -> _ReservationRule | None:
    """Return the rule for jobs that need a reservation; None if no job needs one or there is no site file."""
    placement = site.config.placement if site.config_path.exists() else Placement()
    settings = placement.reservations
    if settings is None or settings.required_gpus is None:
        return None
    return {"required_gpus": settings.required_gpus, "mode": placement.mode}


def _warning(found: InForce | None, path: Path, file: Path | None) -> str | None:
    apply_it = apply_command(file)
    if found is InForce.DIFFERENT:
        return f"Not active as shown: {SCRIPT_NAME} differs; `{apply_it}` installs {path}."
    if found is InForce.FOREIGN:
        return f"Not active: {SCRIPT_NAME} is not slurm-gpu's; `{apply_it}` prints the remedy."
    return None


def _missing_scripts(checked: Policy, source: YamlSource) -> Iterator[InputError]:
    """Yield a warning for each script under `chain:` that this host lacks; slurmctld's host may have it."""
    for place, path in (("before", checked.chain.before), ("after", checked.chain.after)):
        if path is not None and not Path(path).is_file():
            message = (
                f"{place}: {path} does not exist on this host; without it `policy apply` installs nothing"
            )
            yield source.error(("chain", place), message)


def _unknown_to_cluster(site: CommandSite, checked: Policy, source: YamlSource) -> tuple[InputError, ...]:
    try:
        return unknown_to_cluster(checked, source, site.slurm.nodes())
    except OutsideError:
        return ()  # a policy can be checked on a host without Slurm


def _unknown_to_slurmdbd(site: CommandSite, checked: Policy, source: YamlSource) -> tuple[InputError, ...]:
    try:
        settings, nodes = site.slurm.settings(), site.slurm.nodes()
        if not has_slurmdbd(settings):
            return ()
        found = read_accounting(site.limits, settings.cluster)
    except OutsideError:
        return ()
    return unknown_to_slurmdbd(checked, source, found, sum(node.n_gpus for node in nodes))


def _broken_promises(site: CommandSite, checked: Policy, source: YamlSource) -> tuple[InputError, ...]:
    if not checked.owners:
        return ()
    try:
        settings, nodes = site.slurm.settings(), site.slurm.nodes()
    except OutsideError:
        return ()
    return broken_promises(checked, source, settings, sum(node.n_gpus for node in nodes))


def _in_force(site: CommandSite, checked: Policy, source: YamlSource) -> InForce | None:
    """Compare the installed script with the policy; return None if this host cannot do so."""
    try:
        settings = site.slurm.settings()
        facts = SiteFacts.of(settings, site.slurm.nodes(), RUN_DIRECTORY, timezone(site))
        script = Path(settings.conf_path).parent / SCRIPT_NAME
        return compare_installed(script, checked, source, facts, site.directory())
    except OutsideError:
        return None  # the page can be shown on a host without Slurm
