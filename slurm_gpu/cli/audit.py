"""`slurm-gpu audit`: what was done to the cluster, by whom and why."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.cells import moment, text
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.site import Site, with_site

_MOST = 1000
_COLUMNS = ("when", "act", "of", "before", "after", "why", "told by")


@click.command()
@click.option(
    "--last", type=click.IntRange(1, _MOST), default=20, show_default=True, metavar="N", help="So many acts."
)
@click.option("--act", metavar="WORDS", help="Of the last 1000 those that begin so, such as urgent.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the evidence of each act.")
@with_site
def audit(site: Site, last: int, act: str | None, as_json: bool) -> None:
    """What was done to the cluster: urgent jobs that started, limits that moved, weights, reservations.

    The last one comes last. For operators, root and SlurmUser.
    """
    with site.database() as database:
        found = database.acts(_MOST if act is not None else last)
    chosen = [one for one in found if act is None or one.act.startswith(act)][:last]
    acts = chosen[::-1]
    if as_json:
        print_json({"audit": [one.to_json() for one in acts]})
        return
    if not acts:
        remark("no such act is on record" if act is not None else "no act is on record")
        return
    zone = ZoneInfo(site.config.timezone)
    rows = [
        (
            moment(one.at_s, zone), text(one.act), text(one.subject), text(one.old), text(one.new),
            text(one.why), text(one.who),
        )
        for one in acts
    ]  # fmt: skip
    print_table(_COLUMNS, rows, whole=("when",), spare=("told by", "before", "after"))
