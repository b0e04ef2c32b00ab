"""`policy replay --starts`: simulate when recorded jobs would have started under a policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu.cli.output import print_table, remark
from slurm_gpu.cli.policy.limit_search import past_run
from slurm_gpu.cli.policy.waits_json import reproduction_json, waits_json
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.users import PastUsers
from slurm_gpu.policy.explain.replay import Judgement
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import PolicyInForce, policy_of, read_policy_in_force
from slurm_gpu.reports.recommend.past import PastRun, rebuild, scheduling_of
from slurm_gpu.reports.recommend.rules import RuleLimit, modelled_rules
from slurm_gpu.reports.recommend.search import LimitSearch, PredictedWaits
from slurm_gpu.reports.recommend.waits import ALL, Reproduction
from slurm_gpu.text.units import counted

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import Run

_COLUMNS = ("group", "jobs", "recorded_h", "WAIT_h", "median", "typical user", "by limits")


@dataclass(frozen=True)
class Starts:
    """Waits predicted by the model, and the accuracy of the model."""

    reproduction: Reproduction
    """Accuracy of the model for all jobs under the active policy."""
    recorded_h: Mapping[str, float]
    """The mean recorded wait of each group of the new policy."""
    predicted: PredictedWaits
    """Waits of the accepted jobs under the new policy."""
    remarks: tuple[str, ...]


def model_starts(
    site: CommandSite,
    compiled: Mapping[str, Plain],
    runs: Sequence[Run],
    judgements: Sequence[Judgement],
    unenforced: Iterable[RuleLimit],
    since_s: int,
    until_s: int | None,
) -> Starts:
    """Simulate the jobs that the policy accepts, each in its QOS and partition under the policy.

    `unenforced` contains the limits that nothing enforces; the model ignores them.
    """
    settings, nodes = site.slurm.settings(), site.slurm.nodes()
    now_s = site.wall()
    until_s = int(now_s) if until_s is None else until_s
    users = PastUsers()
    refused = {job.job_id for one in judgements if not one.accepted for job in one.jobs}
    places = {job.job_id: one for one in judgements if one.accepted for job in one.jobs}
    past_runs = [past_run(run, users) for run in runs]
    let_in: list[PastRun] = [
        past
        if (place := places.get(run.job_id)) is None
        else replace(past, qos=place.qos, partition=place.partition)
        for run, past in zip(runs, past_runs, strict=True)
        if run.job_id not in refused
    ]
    scheduling = scheduling_of(settings.raw)
    new, remarks = modelled_rules(policy_of(build_bundle(compiled)), unenforced, now_s)
    past = rebuild(let_in, nodes, since_s, until_s)
    search = LimitSearch(past, new, scheduling, now_s)
    in_force = read_policy_in_force(Path(settings.conf_path).parent / SCRIPT_NAME)
    old, _ = modelled_rules(PolicyInForce() if in_force is None else in_force, (), now_s)
    as_it_was = LimitSearch(rebuild(past_runs, nodes, since_s, until_s), old, scheduling, now_s)
    return Starts(
        as_it_was.reproduction()[ALL],
        {name: one.recorded_h for name, one in search.reproduction().items()},
        search.predict(),
        (*remarks, *past.remarks),
    )


def print_starts(starts: Starts) -> None:
    """Print the table, with a warning if the model does not reproduce the recorded waits."""
    click.echo("\nModelled waits under this policy, and recorded waits (hours):")
    rows = [
        (
            name,
            str(one.jobs),
            *map(_h, (starts.recorded_h[name], one.mean_h, one.median_h, one.user_h, one.by_limits_h)),
        )
        for name, one in starts.predicted.waits.items()
    ]
    print_table(_COLUMNS, rows, right=_COLUMNS[1:])
    if starts.predicted.requeued:
        click.echo(f"requeued to return GPUs to their owners: {counted(starts.predicted.requeued, 'job')}")
    if (doubt := starts.reproduction.doubt) is not None:
        remark(f"warning: use these waits only to compare policies. Under the active policy: {doubt}")


def starts_json(starts: Starts) -> dict[str, Any]:
    """Return the waits with stable keys."""
    return {
        "reproduction": reproduction_json(starts.reproduction),
        "waits": {
            name: {"recorded_h": starts.recorded_h[name], **waits_json(one)}
            for name, one in starts.predicted.waits.items()
        },
        "requeued": starts.predicted.requeued,
    }


def _h(hours: float) -> str:
    return f"{hours:.2f}"
