"""`slurm-gpu placement replay`: simulate recorded jobs under other placement rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.policy.file import timezone
from slurm_gpu.cli.policy.limit_search import past_run
from slurm_gpu.cli.policy.waits_json import reproduction_json
from slurm_gpu.cli.runs.all_runs import all_users_runs
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.times import parse_moment
from slurm_gpu.cli.users import PastUsers
from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import PolicyInForce, read_policy_in_force
from slurm_gpu.reports.recommend.past import rebuild, scheduling_of
from slurm_gpu.reports.recommend.rules import modelled_rules
from slurm_gpu.text.units import counted

if TYPE_CHECKING:  # numpy is installed only where reports are built
    from slurm_gpu.placement.replay import Figures
    from slurm_gpu.reports.placement_replay import RuleComparison

_COLUMNS = ("rule", "used", "stranded_GPUh", "idle_GPUh", "across_zones", "never")
_WAITS = ("jobs_of", "jobs", "rule", "mean_h", "median_h", "p95_h")


def replay_placement(
    site: CommandSite,
    since: str,
    until: str | None,
    zone_wait_s: float,
    weights: Mapping[str, int],
    *,
    as_json: bool,
) -> None:
    """Simulate the jobs of the period under each rule, and print the differences."""
    from slurm_gpu.reports.placement_replay import compare_rules  # numpy is slow to import

    zone, now_s = ZoneInfo(timezone(site)), site.wall()
    since_s = int(parse_moment("--since", since, zone, now_s) or 0)
    requested_until_s = parse_moment("--until", until, zone, now_s)
    until_s = int(now_s if requested_until_s is None else requested_until_s)
    settings, nodes = site.slurm.settings(), site.slurm.nodes()
    users = PastUsers()
    runs = all_users_runs(site, since_s, until_s)
    past = rebuild((past_run(run, users) for run in runs), nodes, since_s, until_s)
    in_force = read_policy_in_force(Path(settings.conf_path).parent / SCRIPT_NAME)
    policy, remarks = modelled_rules(PolicyInForce() if in_force is None else in_force, (), now_s)
    found = compare_rules(
        past,
        policy,
        scheduling_of(settings.raw),
        now_s,
        zones=group_by_node("zones", site.config.zones),
        weights=weights,
        zone_wait_s=zone_wait_s,
    )
    for text in (*past.remarks, *remarks):
        remark(text)
    if as_json:
        print_json(_to_json(found, [*past.remarks, *remarks]))
    else:
        _print(found)


def _print(found: RuleComparison) -> None:
    click.echo(f"{counted(next(iter(found.rules.values())).jobs, 'job')} in the period")
    print_table(_COLUMNS, (_row(name, one) for name, one in found.rules.items()), right=_COLUMNS[1:])
    click.echo("\nModelled waits:")
    print_table(_WAITS, _wait_rows(found.rules), right=("jobs", *_WAITS[3:]))
    if (doubt := found.reproduction.doubt) is not None:
        remark(f"warning: use these figures only to compare rules. With Slurm's own placement: {doubt}")


def _row(name: str, one: Figures) -> tuple[str, ...]:
    return (
        name,
        f"{one.utilisation:.1%}",
        f"{one.stranded_gpu_hours:.1f}",
        f"{one.idle_gpu_hours_while_waiting:.1f}",
        str(one.straddling),
        str(one.never_started),
    )


def _wait_rows(rules: Mapping[str, Figures]) -> Iterator[tuple[str, ...]]:
    scales = dict.fromkeys(scale for one in rules.values() for scale in one.waits)
    for scale in scales:
        for name, one in rules.items():
            if (waits := one.waits.get(scale)) is not None:
                hours = (waits.mean_h, waits.median_h, waits.p95_h)
                yield (scale, str(waits.jobs), name, *(f"{value:.2f}" for value in hours))


def _to_json(found: RuleComparison, remarks: list[str]) -> dict[str, Any]:
    return {
        "rules": {name: _figures_json(one) for name, one in found.rules.items()},
        "reproduction": reproduction_json(found.reproduction),
        "left_out": remarks,
    }


def _figures_json(one: Figures) -> dict[str, Any]:
    keys = asdict(one)
    del keys["longest_as_first_h"]  # meaningful only for queues without limits
    return keys
