"""`slurm-gpu web`: print a link that signs the caller in to slurm-gpuweb."""

from __future__ import annotations

from dataclasses import asdict
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.text.cells import moment


@click.command()
@json_option
@with_site
def web(site: CommandSite, as_json: bool) -> None:
    """Print a link that signs you in to slurm-gpuweb, the page of the whole cluster.

    The link works once, within a minute. Anyone who opens it is signed in as you, so do not share it.
    """
    from slurm_gpu.monitor.signin.link_request import ask_for_link

    link = ask_for_link(site.config)
    if as_json:
        print_json(asdict(link))
        return
    click.echo(link.url)
    remark(f"The link can be used once and expires at {moment(link.until_s, ZoneInfo(site.config.timezone))}")
