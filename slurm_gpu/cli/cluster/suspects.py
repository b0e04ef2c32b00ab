"""`slurm-gpu nodes --suspect`: list GPUs that were diagnosed as slow or failing in several jobs."""

from __future__ import annotations

from dataclasses import asdict
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.text.cells import moment, text

_COLUMNS = ("node", "GPU", "jobs", "users", "well since", "since", "last")


def show_suspects(site: CommandSite, *, as_json: bool) -> None:
    """Print the suspect GPUs, and the commands with which an operator can drain their nodes."""
    with site.database() as database:
        verdicts = database.verdicts()
        index = {
            item.uuid: item.index
            for report in (database.nodes() if verdicts.suspects else ())
            for item in report.devices
        }
    if as_json:
        print_json({"as_of_s": verdicts.as_of_s, "suspects": [asdict(item) for item in verdicts.suspects]})
        return
    if verdicts.as_of_s is None:
        remark("slurm-gpudbd has not checked running jobs yet")
    if not verdicts.suspects:
        remark("no GPU is suspect in jobs of several users; only operators see suspect GPUs")
        return
    zone = ZoneInfo(site.config.timezone)
    rows = [
        [
            item.node,
            "several" if item.device is None else _gpu(index.get(item.device), item.device),
            *(str(item.jobs), str(item.users), str(item.healthy)),
            *(moment(item.first_s, zone), moment(item.last_s, zone)),
        ]
        for item in verdicts.suspects
    ]
    print_table(_COLUMNS, rows, right=_COLUMNS[2:5], whole=("node", "GPU"))
    click.echo("\nTo take a node out of service once its jobs have ended:")
    for item in verdicts.suspects:
        click.echo(f"  {text(item.next_step)}")


def _gpu(index: int | None, uuid: str) -> str:
    return uuid if index is None else f"{index} ({uuid})"
