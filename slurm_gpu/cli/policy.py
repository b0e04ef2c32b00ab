"""`slurm-gpu policy check|apply|show`."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.errors import InputError, InvalidFileError, OutsideError, UsageError
from slurm_gpu.policy.bundle import RUN_DIRECTORY, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.check import FILE_NAME, load_policy
from slurm_gpu.policy.inforce import InForce, compare_installed
from slurm_gpu.policy.install import (
    SCRIPT_NAME,
    STATE_DIRECTORY,
    install_bundle,
    prepare_run_directory,
    try_bundle,
)
from slurm_gpu.policy.model import Policy
from slurm_gpu.policy.names import SystemDirectory, resolve_names, unmanaged_accounts
from slurm_gpu.policy.page import render_page, to_json
from slurm_gpu.yamlsource import YamlSource

_PATH = click.Path(path_type=Path, readable=False)  # whoever opens it says more than click


def _file_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("file", type=_PATH, required=False, envvar="SLURM_GPU_POLICY")(command)


@click.group()
def policy() -> None:
    """Limits that explain themselves: check policy.yaml, put it into force, show it."""


@policy.command()
@_file_argument
@with_site
def check(site: Site, file: Path | None) -> None:
    """Check FILE (policy.yaml beside slurm-gpu.yaml); print every mistake with its place.

    Exit status 1 if there are any.
    """
    path = _path(site, file)
    try:
        checked, source = load_policy(path)
    except InputError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(1) from None
    # Users may exist only on the cluster, and the check may run elsewhere: a warning, an error for apply.
    for unknown in resolve_names(checked, source, SystemDirectory()).unknown:
        click.echo(f"warning: {unknown}", err=True)
    for unmanaged in unmanaged_accounts(checked, source):
        click.echo(f"warning: {unmanaged}", err=True)
    for warning in _ended(checked):
        click.echo(f"warning: {path}: {warning}", err=True)
    click.echo(f"{path}: no mistakes; rules: {len(checked.rules)}, groups: {len(checked.groups)}")


@policy.command()
@_file_argument
@click.option("--dry-run", is_flag=True, help="Do everything but install.")
@click.option("--replace", is_flag=True, help="Also replace a job_submit.lua that is not slurm-gpu's.")
@click.option(
    "--state-dir", type=_PATH, default=STATE_DIRECTORY, show_default=True, envvar="SLURM_GPU_POLICY_STATE",
    help="Where replaced scripts are kept.",
)  # fmt: skip
@click.option(
    "--run-dir", type=_PATH, default=RUN_DIRECTORY, show_default=True, envvar="SLURM_GPU_RUN_DIR",
    help="Where slurmctld writes decisions.log.",
)  # fmt: skip
@with_site
def apply(
    site: Site, file: Path | None, dry_run: bool, replace: bool, state_dir: Path, run_dir: Path
) -> None:
    """Put FILE into force: check it, build job_submit.lua, try it, and swap it in beside slurm.conf.

    Run it on each host of slurmctld, again whenever membership of a UNIX group in FILE changes.
    """
    path = _path(site, file)
    settings = site.slurm.settings()
    if not dry_run and os.geteuid() not in (0, settings.slurm_user_uid):
        raise UsageError(
            f"policy apply writes beside {settings.conf_path}: run it as root or {settings.slurm_user} "
            "(SlurmUser), or try it with --dry-run"
        )
    checked, source = load_policy(path)
    names = resolve_names(checked, source, SystemDirectory())
    if names.unknown:
        raise InvalidFileError(names.unknown)
    facts = SiteFacts.of(settings, site.slurm.nodes(), run_dir.absolute(), _timezone(site))
    compiled = compile_policy(checked, names, facts)
    bundle = build_bundle(compiled)
    try_bundle(compiled, bundle)
    if "lua" not in settings.raw.get("JobSubmitPlugins", "").split(","):
        click.echo("warning: slurm.conf lacks JobSubmitPlugins=lua: Slurm will not ask this policy", err=True)
    directory = Path(settings.conf_path).parent
    if dry_run:
        click.echo(f"{path} would be installed as {directory / 'job_submit.lua'}; nothing was changed")
        return
    prepare_run_directory(run_dir, settings.slurm_user_uid)
    done = install_bundle(
        bundle, directory, state_dir, replace_foreign=replace, owner_uid=settings.slurm_user_uid
    )
    if not done.changed:
        click.echo(f"{done.script} is up to date")
        return
    kept = f"; the previous one is kept as {done.previous}" if done.previous else ""
    click.echo(f"{path} is in force: {done.script}, read by slurmctld at the next job{kept}")


@policy.command()
@_file_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a page.")
@with_site
def show(site: Site, file: Path | None, as_json: bool) -> None:
    """Show the rules of FILE, with their reasons; says so where slurmctld goes by something else."""
    path = _path(site, file)
    checked, source = load_policy(path)
    found = _in_force(site, checked, source)
    if as_json:
        in_force = None if found in (None, InForce.MISSING) else found is InForce.SAME
        click.echo(json.dumps(to_json(checked) | {"in_force": in_force}, indent=2))
        return
    if found is InForce.DIFFERENT:
        click.echo(
            f"Not in force as shown: {SCRIPT_NAME} differs; `slurm-gpu policy apply` installs {path}.\n"
        )
    elif found is InForce.FOREIGN:
        click.echo(
            f"Not in force: {SCRIPT_NAME} is not slurm-gpu's; see `slurm-gpu policy apply --replace`.\n"
        )
    click.echo(render_page(checked))


def _in_force(site: Site, checked: Policy, source: YamlSource) -> InForce | None:
    """How the script of this host's slurm.conf stands to the policy; None where that cannot be told."""
    try:
        settings = site.slurm.settings()
        facts = SiteFacts.of(settings, site.slurm.nodes(), RUN_DIRECTORY, _timezone(site))
        return compare_installed(Path(settings.conf_path).parent / SCRIPT_NAME, checked, source, facts)
    except OutsideError:
        return None  # the page can be read without a Slurm


def _path(site: Site, file: Path | None) -> Path:
    return file if file is not None else site.config_path.parent / FILE_NAME


def _timezone(site: Site) -> str:
    """The site's, by which the last day of an exception ends; UTC where there is no site file."""
    return site.config.timezone if site.config_path.exists() else "UTC"


def _ended(checked: Policy) -> list[str]:
    today = dt.datetime.now(tz=dt.UTC).date()
    ended = [
        f"group {group.name} ended on {group.until}: its rules bind nobody"
        for group in checked.groups.values()
        if group.until is not None and group.until < today
    ]
    return ended + [
        f"the exception of {exception.user} to {exception.rule} ended on {exception.until}"
        for exception in checked.exceptions
        if exception.until < today
    ]
