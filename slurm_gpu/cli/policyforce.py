"""`slurm-gpu policy apply`: puts policy.yaml into force."""

from __future__ import annotations

import os
from pathlib import Path

import click

from slurm_gpu.cli.policyfile import PATH, file_argument, policy_path, timezone
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.errors import InvalidFileError, UsageError
from slurm_gpu.policy.bundle import RUN_DIRECTORY, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.check import load_policy
from slurm_gpu.policy.install import STATE_DIRECTORY, install_bundle, prepare_run_directory, try_bundle
from slurm_gpu.policy.names import SystemDirectory, resolve_names


@click.command()
@file_argument
@click.option("--dry-run", is_flag=True, help="Do everything but install.")
@click.option("--replace", is_flag=True, help="Also replace a job_submit.lua that is not slurm-gpu's.")
@click.option(
    "--state-dir", type=PATH, default=STATE_DIRECTORY, show_default=True, envvar="SLURM_GPU_POLICY_STATE",
    help="Where replaced scripts are kept.",
)  # fmt: skip
@click.option(
    "--run-dir", type=PATH, default=RUN_DIRECTORY, show_default=True, envvar="SLURM_GPU_RUN_DIR",
    help="Where slurmctld writes decisions.log.",
)  # fmt: skip
@with_site
def apply(
    site: Site, file: Path | None, dry_run: bool, replace: bool, state_dir: Path, run_dir: Path
) -> None:
    """Put FILE into force: check it, build job_submit.lua, try it, and swap it in beside slurm.conf.

    Run it on each host of slurmctld, again whenever membership of a UNIX group in FILE changes.
    """
    path = policy_path(site, file)
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
    facts = SiteFacts.of(settings, site.slurm.nodes(), run_dir.absolute(), timezone(site))
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
