"""`slurm-gpu notices --dry-run`: print the notices that are due, without sending or recording any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.notices.table import print_lines
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.controller.notices.judging import Judgment, judge, message, outlook
from slurm_gpu.controller.notices.poll import diagnosed, poll_database, rules_of
from slurm_gpu.controller.notices.reconciler import ledger_path
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.monitor.cluster.attention import recorded_alerts
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.ledger import Ledger
from slurm_gpu.notices.sending import Message
from slurm_gpu.notices.settings import SEND, Settings
from slurm_gpu.notices.texts import NoticeContext, load_templates
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import CancelIdleInForce, read_policy_in_force
from slurm_gpu.text.cells import text
from slurm_gpu.wire.answers.cluster import ClusterJob


def dry_run(site: CommandSite, settings: Settings, *, as_json: bool, whole: bool) -> None:
    """Compute and print the notices that are due."""
    zone = ZoneInfo(site.config.timezone)
    templates = load_templates(settings.templates)
    ledger, rule = _ledger(site), _rule(site)
    judged = _judged(site, replace(settings, mode=SEND), rule, ledger)
    around = NoticeContext(
        cluster=site.config.cluster, zone=zone, contact=settings.contact, web=site.config.web
    )
    would = [
        (
            draft.channels,
            message("dry-run", draft.user, draft.kind, draft.findings, judged, templates, around),
        )
        for draft in judged.drafts
    ]
    lines = outlook(judged, replace(settings, mode="observe"), zone)
    if as_json:
        print_json(
            {
                "would": [_plain(one, channels, settings) for channels, one in would],
                "now": [asdict(line) for line in lines],
            }
        )
        return
    if lines:
        print_lines(lines, zone)
    else:
        click.echo("No notices would be sent now.")
    if would and not whole:
        click.echo("\nNotices that would be sent (--text prints them in full):")
        rows = [(text(_to(one, channels, settings)), text(one.text.subject)) for channels, one in would]
        print_table(("to", "subject"), rows, cut=("to",))
    for channels, one in would if whole else ():
        click.echo(f"\nTo: {_to(one, channels, settings)}\nSubject: {one.text.subject}\n\n{one.text.body}")
    remark("computed from records, which arrive every five minutes; slurm-gpuctld also uses live values")


def _plain(one: Message, channels: tuple[str, ...], settings: Settings) -> Mapping[str, Any]:
    return {
        "user": one.user,
        "to": _to(one, channels, settings),
        "kind": one.kind,
        "jobs": list(one.jobs),
        "subject": one.text.subject,
        "text": one.text.body,
    }


def _to(one: Message, channels: tuple[str, ...], settings: Settings) -> str:
    by_mail = settings.mail is not None and "mail" in channels
    address = settings.mail.address_of(one.user) if by_mail and settings.mail is not None else one.user
    return f"{address} (webhook)" if "webhook" in channels else address


def _judged(
    site: CommandSite, settings: Settings, rule: CancelIdleInForce | None, ledger: Ledger
) -> Judgment:
    rules = rules_of(site.config)
    with site.database() as database:
        poll = poll_database(database, site.wall)
    seen = DatabaseState(
        cluster=poll.cluster,
        live=poll.live,
        live_s=poll.at_s,
        reports=(),
        reservations=None,
        running=poll.running,
    )
    flags = recorded_alerts(poll.at_s, seen, rules)

    def binds(job: ClusterJob) -> bool:
        return (
            rule is not None
            and job.uid is not None
            and rule.binds(job.uid, job.account, job.qos, job.partition, poll.at_s)
        )

    return judge(poll, [*(flags or ()), *diagnosed(poll, rules)], settings, rule, binds, ledger, poll.at_s)


def _rule(site: CommandSite) -> CancelIdleInForce | None:
    """Return the settings of the active policy for idle jobs."""
    try:
        script = Path(site.slurm.settings().conf_path).parent / SCRIPT_NAME
        policy = read_policy_in_force(script)
    except OutsideError as error:
        remark(f"cannot check whether idle jobs would be warned: {error}")
        return None
    return None if policy is None else policy.cancel_idle


def _ledger(site: CommandSite) -> Ledger:
    """Return the ledger of earlier notices, or an empty one if it cannot be read."""
    try:
        return ledgers.read(ledger_path(site.slurm.settings()))
    except SlurmError as error:
        remark(f"earlier notices cannot be read on this host: {error}")
    except OutsideError as error:
        remark(f"earlier notices require root or SlurmUser: {error}")
    return Ledger()
