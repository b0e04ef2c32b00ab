"""explain reports limits in slurmdbd that a job exceeds by itself, set by a policy or an operator."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.explain.slurm_refusals import RunningSlurm, refusals_of_slurm, waits_of_slurm
from slurm_gpu.policy.explain.submitter import Submitter, read_submitter
from slurm_gpu.slurm.sacctmgr import Association, Qos

from .limitstore import MemoryStore, account, qos, user
from .test_slurm_refusals import CLUSTER, SETTINGS

TREE = (account("root", parent=""), account("lab"), account("vision", parent="lab"), user("alice", "vision"))
NORMAL = (qos("normal"), qos("part"))


def judged(
    words: str, associations: Sequence[Association] = TREE, all_qos: Sequence[Qos] = NORMAL, part: str = ""
) -> tuple[list[str], tuple[str, ...]]:
    """Return the refusals and waits of alice's job in account vision and QOS normal."""
    submitter = read_submitter(MemoryStore(associations, all_qos), "c", "alice", "vision", "normal")
    partitions = [replace(one, qos=part if one.name == "gpu" else None) for one in CLUSTER.partitions]
    return outcome(words, replace(CLUSTER, submitter=submitter, partitions=partitions))


def outcome(words: str, cluster: RunningSlurm) -> tuple[list[str], tuple[str, ...]]:
    request = parse_command(["sbatch", *shlex.split(words), "--wrap=true"], {})
    description = request.description(1001, "alice")
    return refusals_of_slurm(request, description, cluster), waits_of_slurm(request, description, cluster)


def without(name: str) -> tuple[Association, ...]:
    return tuple(one for one in TREE if name not in (one.user, one.account if not one.user else ""))


@pytest.mark.parametrize(
    ("limited", "message"),
    [
        (user("alice", "vision", MaxTRES_gpu=4), "user alice in account vision is MaxTRES=gres/gpu=4"),
        (account("lab", MaxTRES_gpu=4), "account lab is MaxTRES=gres/gpu=4"),
        (account("lab", GrpTRES_gpu=4), "account lab is GrpTRES=gres/gpu=4"),
    ],
)
def test_a_job_over_a_limit_of_an_association_waits(limited: Association, message: str) -> None:
    associations = (*without(limited.user or limited.account), limited)
    assert judged("--gpus=5", associations) == ([], (f"the limit of {message}, and the job requests 5",))
    assert judged("--gpus=4", associations) == ([], ())


@pytest.mark.parametrize(
    ("words", "limit", "message"),
    [
        ("-N2", {"MaxTRES_node": 1}, "MaxTRES=node=1, and the job requests 2"),
        ("-n 9", {"MaxTRESPU_cpu": 8}, "MaxTRESPU=cpu=8, and the job requests 9"),
        ("--mem=20G", {"GrpTRES_mem": 10240}, "GrpTRES=mem=10G, and the job requests 20G"),
        ("-t 2:00:00", {"MaxWall": 60}, "MaxWall=01:00:00, and the job requests 02:00:00"),
    ],
)
def test_a_job_over_a_limit_of_its_qos_waits_or_is_refused(
    words: str, limit: dict[str, int], message: str
) -> None:
    reason = f"the limit of QOS normal is {message}"
    assert judged(words, all_qos=[qos("normal", **limit)]) == ([], (reason,))
    assert judged(words, all_qos=[qos("normal", Flags_deny=1, **limit)]) == ([reason], ())
    assert judged("-n 1 --mem=1G -t 1:00:00", all_qos=[qos("normal", **limit)]) == ([], ())


@pytest.mark.parametrize(
    ("words", "limited", "requested"),
    [
        ("", "MaxSubmitJobs=0", "1"),
        ("", "GrpSubmitJobs=0", "1"),
        ("--array=[0-19]%2", "MaxSubmitJobs=10", "20"),
    ],
)
def test_a_limit_on_submitted_jobs_refuses_the_job(words: str, limited: str, requested: str) -> None:
    name, _, value = limited.partition("=")
    associations = (*without("vision"), account("vision", parent="lab", **{name: int(value)}))
    reason = f"the limit of account vision is {limited}, and the job requests {requested}"
    assert judged(words, associations) == ([reason], ())
    assert judged("--array=0-9", (*TREE, account("other", MaxSubmitJobs=0))) == ([], ())


def test_a_limit_on_running_jobs_lets_the_job_wait() -> None:
    associations = (*without("lab"), account("lab", GrpJobs=0))
    reason = "the limit of account lab is GrpJobs=0, and the job requests 1"
    assert judged("", associations, [qos("normal", Flags_deny=1)]) == ([], (reason,))
    reason = "the limit of QOS normal is MaxJobsPU=0, and the job requests 1"
    assert judged("", TREE, [qos("normal", MaxJobsPU=0)]) == ([], (reason,))


def test_the_qos_of_the_partition_counts_before_the_jobs_qos_and_the_association() -> None:
    associations = (*without("alice"), user("alice", "vision", MaxTRES_gpu=1))
    part, normal = qos("part", MaxTRES_gpu=4), qos("normal", MaxTRES_gpu=2)
    over = "the limit of QOS {} is MaxTRES=gres/gpu={}, and the job requests {}"
    assert judged("--gpus=3", associations, [normal, part], "part") == ([], ())
    assert judged("--gpus=5", associations, [normal, part], "part") == ([], (over.format("part", 4, 5),))
    first = qos("normal", MaxTRES_gpu=2, Flags_OverPartQOS=1)
    assert judged("--gpus=3", associations, [first, part], "part") == ([], (over.format("normal", 2, 3),))


@pytest.mark.parametrize(("factor", "most"), [(2.0, 8), (1.6, 6), (0.5, 2), (0.0, 4), (None, 4)])
def test_the_limit_factor_of_a_qos_multiplies_tres_limits_of_associations(
    factor: float | None, most: int
) -> None:
    associations = (*without("lab"), account("lab", GrpTRES_gpu=4, MaxSubmitJobs=4))
    normal = replace(qos("normal"), limit_factor=factor)
    assert judged(f"--gpus={most}", associations, [normal]) == ([], ())
    times = f" times LimitFactor={factor:g}" if factor else ""
    assert judged(f"--gpus={most + 1}", associations, [normal])[1] == (
        f"the limit of account lab is GrpTRES=gres/gpu=4{times}, and the job requests {most + 1}",
    )
    assert judged("--array=0-4", associations, [normal])[0]
    first = replace(qos("part"), limit_factor=1.0)
    assert judged("--gpus=5", associations, [normal, first], "part")[1]
    own = qos("normal", GrpTRES_gpu=4)
    assert judged("--gpus=5", TREE, [replace(own, limit_factor=factor)])[1]


def test_one_partition_without_the_limit_is_enough() -> None:
    part = qos("part", MaxTRES_node=1)
    assert judged("-N2 -p gpu", all_qos=[qos("normal"), part], part="part")[1]
    assert judged("-N2 -p gpu,old", all_qos=[qos("normal"), part], part="part") == ([], ())


def test_limits_that_slurm_does_not_enforce_or_that_are_unknown_are_not_judged() -> None:
    associations = (*without("vision"), account("vision", parent="lab", GrpTRES_gpu=1))
    assert judged("--gpus=2", associations)[1]
    submitter = read_submitter(MemoryStore(associations, NORMAL), "c", "alice", "vision", "normal")
    cluster = replace(CLUSTER, submitter=submitter)
    settings = replace(SETTINGS, raw={**SETTINGS.raw, "AccountingStorageEnforce": "associations,qos"})
    for unjudged in (
        replace(cluster, settings=settings),
        replace(cluster, submitter=replace(submitter, qos="normal,long")),
        replace(cluster, submitter=replace(submitter, known_qos={})),
        replace(cluster, submitter=Submitter()),
    ):
        assert outcome("--gpus=2", unjudged) == ([], ())


def test_the_limits_of_associations_with_a_partition_are_not_judged() -> None:
    by_partition = user("alice", "vision", "gpu", MaxTRES_gpu=1)
    assert judged("--gpus=2", (*without("alice"), by_partition)) == ([], ())
