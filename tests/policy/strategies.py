"""Requests, rules and bundles for hypothesis; how many examples a run makes."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import strategies as st

from .model import GPU_TYPES, BundleModel, Limit, Request, RuleModel, When

FUZZ = "SLURM_GPU_FUZZ"
"""Variable with the number of examples of a long run, such as 50000."""


def examples(normally: int) -> int:
    """How many examples a fuzz test makes."""
    return int(os.environ.get(FUZZ, normally))


UIDS = st.sampled_from([1001, 1002, 1003])
ACCOUNTS = st.sampled_from(["vision", "nlp"])
PARTITION_LISTS = st.sampled_from(["gpu", "long", "long,gpu"])
SMALL = st.none() | st.integers(1, 6)
MIB = st.sampled_from([1, 1000, 4096, 16384, 65536, 100_000])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """GPUs in every form, nodes, tasks, arrays and time."""
    size = draw(st.sampled_from(["per_job", "per_node", "per_task", "shards_per_node", None]))
    nodes = draw(st.none() | st.integers(1, 4))
    return Request(
        uid=draw(UIDS),
        account=draw(ACCOUNTS),
        partition=draw(PARTITION_LISTS),
        nodes=nodes,
        most_nodes=None if nodes is None else nodes + draw(st.integers(0, 3)),
        n_tasks=draw(st.none() | st.integers(1, 8)),
        array_tasks=draw(st.none() | st.integers(1, 5)),
        minutes=draw(st.none() | st.integers(1, 300)),
        **({} if size is None else {size: draw(st.integers(1, 6))}),
    )


@st.composite
def full_requests(draw: st.DrawFn) -> Request:
    """Besides: types, CPUs, memory, and jobs without a script."""
    request = draw(requests())
    cpus = draw(st.sampled_from(["cpus_per_task", "cpus_per_gpu", None]))
    memory = draw(st.sampled_from(["mib_per_node", "mib_per_cpu", "mib_per_gpu", None]))
    if request.mgpu == 0 or request.only_shards:
        cpus = None if cpus == "cpus_per_gpu" else cpus
        memory = None if memory == "mib_per_gpu" else memory
    amounts: dict[str, int] = {}
    if cpus is not None:
        amounts[cpus] = draw(st.integers(1, 12))
    if memory is not None:
        amounts[memory] = draw(
            st.just(0) | MIB if memory == "mib_per_node" else MIB.filter(lambda n: n != 1024)
        )
    return replace(
        request,
        gpu_type=None if request.only_shards else draw(st.sampled_from([None, *GPU_TYPES])),
        interactive=draw(st.booleans()),
        **amounts,  # type: ignore[arg-type]
    )


@st.composite
def queued(draw: st.DrawFn) -> tuple[Request, bool]:
    """A job and whether it runs; what runs on GPUs has some type."""
    job, running = draw(full_requests()), draw(st.booleans())
    if running and job.mgpu and not job.only_shards and job.named_type is None:
        job = replace(job, given_type=draw(st.sampled_from([None, *GPU_TYPES])))
    return job, running


HALVES = st.integers(0, 40).map(lambda n: n * 500)
STEPS = st.lists(
    st.tuples(st.integers(0, 8000), st.integers(1, 200).map(lambda n: n * 60)), min_size=1, max_size=3
)


def limits_of(per: str) -> st.SearchStrategy[dict[str, float]]:
    """The oldest limits."""
    if per == "job":
        keys = {
            "gpus": st.integers(0, 12).map(lambda n: n * 500),
            "walltime": st.integers(1, 200).map(lambda n: n * 60),
        }
    else:
        keys = {"gpus_total": HALVES, "jobs_total": st.integers(0, 15)}
    return st.fixed_dictionaries({}, optional=keys)


def full_limits_of(per: str) -> st.SearchStrategy[dict[str, Limit]]:
    """Every limit that a submission can be refused for."""
    keys: dict[str, st.SearchStrategy[Limit]]
    if per == "job":
        keys = {
            "gpus": HALVES,
            "gpus:a100": HALVES,
            "gpus:v100": HALVES,
            "nodes": st.integers(0, 6),
            "cpus": st.integers(0, 40),
            "memory": st.integers(0, 400_000),
            "cpus_per_gpu": st.integers(0, 12),
            "memory_per_gpu": st.integers(0, 100_000),
            "array_tasks": st.integers(0, 5),
            "tasks": st.integers(0, 8),
            "walltime": st.integers(1, 200).map(lambda n: n * 60)
            | STEPS.map(lambda steps: tuple(sorted(dict(steps).items()))),
            "partitions": st.frozensets(st.sampled_from(["gpu", "long"]), min_size=1),
            "gpu_types": st.frozensets(st.sampled_from(GPU_TYPES), min_size=1),
        }
    else:
        keys = {
            "gpus_total": HALVES,
            "gpus_total:a100": HALVES,
            "gpus_total:v100": HALVES,
            "jobs_total": st.integers(0, 15),
            "cpus_total": st.integers(0, 100),
            "memory_total": st.integers(0, 1_000_000),
            "gpu_hours:week": st.integers(0, 60),
        }
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def rule_lists(draw: st.DrawFn, *, kinds: bool = True, hours: bool = True) -> list[RuleModel]:
    """Up to four rules; `hours` lets them limit GPU-hours, `kinds` lets them sum over one kind of jobs."""
    rules = []
    for number in range(draw(st.integers(0, 4))):
        per = draw(st.sampled_from(["user", "group", "job"]))
        limits = draw(full_limits_of(per))
        if not hours:
            limits.pop("gpu_hours:week", None)
        exceptions = {}
        if per != "group" and draw(st.booleans()):
            own = draw(full_limits_of(per))
            exceptions = {draw(UIDS): {key: value for key, value in own.items() if key in limits}}
        rules.append(
            RuleModel(
                id=f"rule{number}",
                per=per,
                mode=draw(st.sampled_from(["enforce", "enforce", "advise", "observe"])),
                users=draw(st.none() | st.frozensets(UIDS, min_size=1)),
                accounts=draw(st.none() | st.frozensets(ACCOUNTS, min_size=1)),
                partitions=draw(st.none() | st.frozensets(st.sampled_from(["gpu", "long"]), min_size=1)),
                kind=draw(st.sampled_from([None, "interactive", "batch"])) if kinds or per == "job" else None,
                when=draw(st.none() | whens()),
                limits=limits,
                exceptions=exceptions,
            )
        )
    return rules


@st.composite
def whens(draw: st.DrawFn) -> When:
    """Days and hours."""
    begin = draw(st.integers(0, 1439))
    days = draw(st.frozensets(st.integers(0, 6), min_size=1))
    return When(days, begin, draw(st.integers(begin + 1, 1440)))


BUNDLES = st.lists(
    st.builds(
        BundleModel,
        name=st.sampled_from(["train", "small", "prep"]),
        mgpu=st.sampled_from([0, 500, 1000, 2000]),
        cpus=st.none() | st.integers(1, 16),
        mib=st.none() | MIB,
        partitions=st.none() | st.frozensets(st.sampled_from(["gpu", "long"]), min_size=1),
        gpu_types=st.none() | st.frozensets(st.sampled_from(GPU_TYPES), min_size=1),
        mode=st.sampled_from(["fit", "observe", "advise", "enforce"]),
    ),
    max_size=3,
    unique_by=lambda bundle: bundle.name,
)
