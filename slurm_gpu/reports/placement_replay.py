"""Replay recorded runs through the model of the cluster under several placement rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu.placement.choice import LeastFragmentation, MostAllocated
from slurm_gpu.placement.placing import ByRule
from slurm_gpu.placement.replay import Figures, figures, in_one_zone_where_possible, mix_of
from slurm_gpu.placement.weighted import NodeWeights
from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.reports.recommend.past import RecordedPast
from slurm_gpu.reports.recommend.rules import count_by, counters, jobs_under, preemption_of
from slurm_gpu.reports.recommend.waits import Reproduction, compare
from slurm_gpu.simulate.jobs import Jobs
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.placement import FirstFit, PlacementChoice
from slurm_gpu.simulate.scheduler import Scheduling

SLURM, MOST_ALLOCATED, WEIGHTS, OURS = "slurm", "mostallocated", "weights", "ours"
# The number of scheduling decisions between two updates of weights, because Slurm starts several jobs at
# once.
_WEIGHTS_EVERY = 10


@dataclass(frozen=True, slots=True)
class RuleComparison:
    """The results for the same jobs under each rule."""

    rules: Mapping[str, Figures]
    reproduction: Reproduction
    """The accuracy with which the model reproduces the recorded waits, using Slurm's own placement."""


def compare_rules(
    past: RecordedPast,
    policy: PolicyInForce,
    scheduling: Scheduling,
    at_s: float,
    *,
    zones: Mapping[str, str],
    weights: Mapping[str, int],
    zone_wait_s: float,
) -> RuleComparison:
    """Replay the past under each rule, with the running limits of a policy at `at_s`.

    `zones` and `weights` contain the zone and the site's own Weight of each node. If there are zones,
    slurm-gpu's rule makes jobs on several nodes wait up to `zone_wait_s` for nodes in a single zone.
    """
    nodes = tuple(
        replace(node, zone=zones.get(node.name, ""), weight=weights.get(node.name, 1))
        for node in past.cluster.nodes
    )
    cluster = replace(past.cluster, nodes=nodes)
    counted = count_by(policy, past.runs)
    jobs = jobs_under(policy, past, counted)
    mix = mix_of(jobs)
    rules: dict[str, tuple[PlacementChoice, Jobs]] = {
        SLURM: (FirstFit(), jobs),
        MOST_ALLOCATED: (ByRule(cluster, MostAllocated()), jobs),
        WEIGHTS: (ByRule(cluster, NodeWeights(mix, every=_WEIGHTS_EVERY)), jobs),
        OURS: (
            ByRule(cluster, LeastFragmentation(mix, whole_last=True)),
            in_one_zone_where_possible(cluster, jobs) if zones else jobs,
        ),
    }
    found: dict[str, Figures] = {}
    wait_s = np.full(len(jobs), np.nan)
    for name, (placement, asked) in rules.items():
        outcome = simulate(
            cluster,
            asked,
            scheduling=scheduling,
            counters=counters(policy, counted, at_s),
            placement=placement,
            preemption=preemption_of(policy),
            zone_wait_s=zone_wait_s,
            log=True,
        )
        found[name] = figures(cluster, asked, outcome, past.requested_mgpu())
        if name == SLURM:
            wait_s = past.wait_s(outcome.start_s)
    judged = past.judged & ~np.isnan(wait_s)
    return RuleComparison(found, compare(past.recorded_wait_s(), wait_s, judged))
