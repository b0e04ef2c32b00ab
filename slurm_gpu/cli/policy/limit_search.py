"""Prepare a search for better limits, from the policy, the nodes and recorded jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from slurm_gpu.cli.policy.file import timezone
from slurm_gpu.cli.policy.loaded import LoadedPolicy
from slurm_gpu.cli.policy.waits_json import reproduction_json, waits_json
from slurm_gpu.cli.runs.all_runs import all_users_runs
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.times import parse_moment
from slurm_gpu.cli.users import PastUsers
from slurm_gpu.errors import UsageError
from slurm_gpu.policy.language.limit_value import value_text
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.installed import policy_of
from slurm_gpu.policy.native.unenforced import unenforced_limits
from slurm_gpu.reports.recommend.past import PastRun, RecordedPast, rebuild, scheduling_of
from slurm_gpu.reports.recommend.rules import RuleLimit, modelled_rules
from slurm_gpu.reports.recommend.search import Findings, LimitSearch, LimitTrial

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import Run


@dataclass(frozen=True)
class Replayed:
    """A policy, the recorded jobs of a period, and the search for better limits that uses them."""

    loaded: LoadedPolicy
    past: RecordedPast
    search: LimitSearch
    since_s: int
    until_s: int
    remarks: tuple[str, ...]


def replayed(
    site: CommandSite,
    file: Path | None,
    since: str,
    until: str | None,
    report_progress: Callable[[str], object] = lambda what: None,
) -> Replayed:
    """Read the policy and the recorded jobs; raise UsageError if the policy does not limit running jobs."""
    loaded = LoadedPolicy.read(site, file)
    zone = ZoneInfo(timezone(site))
    now_s = site.wall()
    since_s = parse_moment("--since", since, zone, now_s)
    until_s = parse_moment("--until", until, zone, now_s)
    assert since_s is not None, "the option has a default"
    until_s = int(now_s) if until_s is None else until_s
    if since_s >= until_s:
        raise UsageError(
            f"{'now' if until is None else f'--until {until}'} is not later than --since {since}"
        )
    today = dt.datetime.fromtimestamp(now_s, zone).date()
    vain = [RuleLimit(rule.id, key) for rule, key, _ in unenforced_limits(loaded.policy, loaded.names, today)]
    policy, remarks = modelled_rules(policy_of(build_bundle(loaded.compiled())), vain, now_s)
    if not policy.rules:
        raise UsageError(
            f"{loaded.path} has no limits on running jobs (such as gpus_running) that Slurm enforces, so "
            "there is nothing to recommend; see docs/policy.md for the requirements"
        )
    report_progress("recorded runs")
    users = PastUsers()
    runs = [past_run(run, users) for run in all_users_runs(site, since_s, until_s)]
    past = rebuild(runs, site.slurm.nodes(), since_s, until_s)
    search = LimitSearch(past, policy, scheduling_of(loaded.settings.raw), now_s)
    return Replayed(loaded, past, search, since_s, until_s, (*remarks, *past.remarks))


def past_run(run: Run, users: PastUsers) -> PastRun:
    """Convert a run recorded by slurm-gpudbd to a run of the model."""
    return PastRun(
        job_id=run.job_id if run.array_job_id is None else run.array_job_id,
        array_task=run.array_task or 0,
        user=run.user,
        uid=users.uid(run.user),
        account=run.account,
        qos=run.qos,
        partition=run.partition,
        eligible_s=run.submit_s if run.eligible_s is None else run.eligible_s,
        start_s=run.start_s,
        end_s=run.end_s,
        time_limit_s=run.time_limit_s,
        n_nodes=run.n_nodes,
        tres_requested=run.tres_requested or {},
        tres_allocated=run.tres_allocated or {},
        n_gpus=run.n_gpus if run.has_started else run.n_gpus_requested,
        gpu_type=run.gpu_type,
    )


def findings_json(found: Replayed, findings: Findings) -> dict[str, Any]:
    """Return the findings with stable keys: waits in hours, and limits as written in policy.yaml."""
    return {
        "since_s": found.since_s,
        "until_s": found.until_s,
        "runs": len(found.past.jobs),
        "compared": int(found.past.judged.sum()),
        "reproduction": {name: reproduction_json(one) for name, one in findings.reproduction.items()},
        "idle": {
            name: {"waited_h": one.waited_h, "gpus": one.gpus if one.waited_h else None}
            for name, one in findings.idle.items()
        },
        "refused": list(findings.refused),
        "changes": [_change_json(change) for change in findings.changes],
        "tried": [
            {
                **_change_json(trial.change),
                "gain_h": trial.gain_h,
                "worth_it": trial.worth_it,
                "longer_for": list(trial.hurts),
            }
            for trial in findings.trials
        ],
        "waits": {
            name: {"before": waits_json(before), "after": waits_json(findings.after[name])}
            for name, before in findings.before.items()
        },
        "left_out": list(found.remarks),
    }


def _change_json(change: LimitTrial) -> dict[str, Any]:
    key = change.limit.key
    return {
        "rule": change.limit.rule,
        "limit": key,
        "old": value_text(key, change.old),
        "new": value_text(key, change.new),
    }
