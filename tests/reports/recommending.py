"""Generate recorded runs under known limits that the search does not use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import PolicyInForce, policy_of
from slurm_gpu.reports.recommend.past import PastRun, rebuild
from slurm_gpu.reports.recommend.rules import count_by, counters, jobs_under, modelled_rules, preemption_of
from slurm_gpu.reports.recommend.search import LimitSearch
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.scheduler import Scheduling
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.tres import SharesPerGpu, count_mgpu
from tests.policy.users import Directory

T0 = 1795262400
HOUR = 3600
UIDS = {"alice": 1001, "bob": 1002, "carol": 1003}


def policy(text: str) -> PolicyInForce:
    """Return the limits on running jobs of a policy.yaml."""
    source = parse_yaml(text, "policy.yaml")
    checked = check_policy(source)
    facts = SiteFacts(n_gpus=8, has_qos=True)
    compiled = compile_policy(checked, resolve_names(checked, source, Directory()), facts)
    modelled, _ = modelled_rules(policy_of(build_bundle(compiled)), (), 1796083200)
    return modelled


def nodes(n: int = 2, gpus: int = 4, **changes: object) -> list[SlurmNode]:
    one = SlurmNode(
        name="n1",
        address="n1",
        state="idle",
        reason=None,
        cpus=64,
        cpus_allocated=0,
        memory_mib=512_000,
        memory_allocated_mib=0,
        gpus={"a100": gpus},
        gpus_allocated={},
        shards=0,
        shards_allocated=0,
        features=(),
        partitions=("gpu",),
    )
    return [dataclasses.replace(one, name=f"n{i}", **changes) for i in range(1, n + 1)]  # type: ignore[arg-type]


def past_run(
    at_h: float, user: str = "alice", gpus: float = 1, run_h: float = 1, **changes: object
) -> PastRun:
    """Return a run that did not wait; times are hours from T0."""
    at_s = T0 + round(at_h * HOUR)
    tres = {"cpu": 4.0, "mem": 8192.0, "gres/gpu": float(gpus)}
    run = PastRun(
        job_id=1,
        user=user,
        uid=UIDS[user],
        account="vision",
        qos="normal",
        partition="gpu",
        eligible_s=at_s,
        start_s=at_s,
        end_s=at_s + round(run_h * HOUR),
        time_limit_s=round(2 * run_h * HOUR),
        n_nodes=1,
        tres_requested=tres,
        tres_allocated=tres,
        n_gpus=None,
        gpu_type="a100",
    )
    run = dataclasses.replace(run, **changes)  # type: ignore[arg-type]
    return run if "n_gpus" in changes else dataclasses.replace(run, n_gpus=_gpus(run.tres))


def _gpus(tres: Mapping[str, float]) -> float | None:
    mgpu = count_mgpu(tres, SharesPerGpu(shard=4))
    return None if mgpu is None else mgpu / 1000


def recorded(runs: Sequence[PastRun], under: PolicyInForce) -> list[PastRun]:
    """Return the runs with the start times of a cluster with the given limits."""
    past = rebuild(runs, nodes(), T0, T0 + 10**9)
    counted = count_by(under, past.runs)
    outcome = simulate(
        past.cluster,
        jobs_under(under, past, counted),
        scheduling=Scheduling(backfill_every_s=30),
        counters=counters(under, counted, T0),
        preemption=preemption_of(under),
    )
    assert not any(math.isnan(start) for start in outcome.start_s)
    return [
        dataclasses.replace(run, start_s=int(start), end_s=int(end))
        for run, start, end in zip(past.runs, outcome.start_s, outcome.end_s, strict=True)
    ]


def search(runs: Sequence[PastRun], under: PolicyInForce, until_h: float = 1000) -> LimitSearch:
    past = rebuild(runs, nodes(), T0, T0 + round(until_h * HOUR))
    return LimitSearch(past, under, Scheduling(backfill_every_s=30), T0)
