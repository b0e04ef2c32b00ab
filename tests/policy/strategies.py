"""Hypothesis strategies for jobs."""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st

from .model import GPU_TYPES, Request
from .users import ACCOUNTS as ACCOUNT_NAMES

T = TypeVar("T")

# Strategies are cached: hypothesis needs longer to analyse a new strategy than to draw from it.
whole = functools.cache(st.integers)


@functools.cache
def maybe_whole(low: int, high: int) -> st.SearchStrategy[int | None]:
    """Draw a number from low to high, or None."""
    return st.none() | whole(low, high)


@functools.cache
def some_of(*values: T) -> st.SearchStrategy[T]:
    """Draw one of these values, which must be of one type: 1 and True are equal in the cache."""
    return st.sampled_from(values)


# Days around clock changes in some time zone, and other days.
DAYS = (dt.date(2026, 10, 31), dt.date(2026, 11, 20), dt.date(2027, 3, 13))
MIDNIGHTS = [int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()) for day in DAYS]
# Times of --begin; most scenarios take place at these times.
BEGINS = st.builds(int.__add__, st.sampled_from(MIDNIGHTS), st.integers(0, 4 * 86400))
UIDS = st.sampled_from([1001, 1002, 1003])
ACCOUNTS = st.sampled_from(ACCOUNT_NAMES)
PARTITION_LISTS = st.sampled_from(["gpu", "long", "long,gpu"])
SMALL = st.none() | st.integers(1, 6)
MIB = st.sampled_from([1, 1000, 4096, 16384, 65536, 100_000])
OF_A_NODE = st.just(0) | MIB


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw GPUs in every form, nodes, tasks, arrays and time."""
    size = draw(some_of("per_job", "per_node", "per_task", "shards_per_node", None))
    nodes = draw(maybe_whole(1, 4))
    return Request(
        uid=draw(UIDS),
        account=draw(ACCOUNTS),
        partition=draw(PARTITION_LISTS),
        nodes=nodes,
        most_nodes=None if nodes is None else nodes + draw(whole(0, 3)),
        n_tasks=draw(maybe_whole(1, 8)),
        array_tasks=draw(maybe_whole(1, 5)),
        minutes=draw(maybe_whole(1, 300)),
        **({} if size is None else {size: draw(whole(1, 6))}),
    )


_REQUESTS = requests()


@st.composite
def full_requests(draw: st.DrawFn) -> Request:
    """Draw requests that may also have types, CPUs and memory, or lack a script."""
    request = draw(_REQUESTS)
    cpus = draw(some_of("cpus_per_task", "cpus_per_gpu", None))
    memory = draw(some_of("mib_per_node", "mib_per_cpu", "mib_per_gpu", None))
    if request.mgpu == 0 or request.only_parts:
        cpus = None if cpus == "cpus_per_gpu" else cpus
        memory = None if memory == "mib_per_gpu" else memory
    amounts: dict[str, int] = {}
    if cpus is not None:
        amounts[cpus] = draw(whole(1, 12))
    if memory is not None:
        amounts[memory] = draw(OF_A_NODE if memory == "mib_per_node" else MIB)
    return replace(
        request,
        gpu_type=None if request.only_parts else draw(some_of(None, *GPU_TYPES)),
        interactive=draw(st.booleans()),
        name=draw(some_of("train", "jupyter")),
        **amounts,  # type: ignore[arg-type]
    )


_FULL_REQUESTS = full_requests()


@st.composite
def every_request(draw: st.DrawFn) -> Request:
    """Draw full requests that may also have sockets, MPS, tasks per node or GPU, QOS and whole nodes."""
    request = draw(_FULL_REQUESTS)
    qos = draw(some_of("normal", "normal", "sg-long", "normal,sg-long", "other,normal"))
    begin_s = draw(BEGINS) if draw(whole(0, 3)) == 0 else None
    minutes = draw(some_of(0, 3000)) if draw(whole(0, 9)) == 0 else request.minutes
    constraint = draw(some_of(None, None, "big", "big&fast", "big|fast"))
    request = replace(request, qos=qos, minutes=minutes, begin_s=begin_s, constraint=constraint)
    match draw(some_of("", "", "", "socket", "by task", "mps", "per node", "exclusive", "both", "named")):
        case "socket" if request.per_job is not None:
            asked = replace(request, per_job=None, per_socket=draw(whole(1, 3)))
            return replace(asked, sockets=draw(maybe_whole(1, 2)))
        case "by task" if request.per_job is not None and request.n_tasks is not None:
            return replace(request, per_job=None, gpu_type=None, tasks_per_gpu=draw(whole(1, 4)))
        case "mps" if request.only_parts:
            return replace(request, shards_per_node=None, mps_per_node=draw(some_of(10, 25, 50)))
        case "per node" if request.exclusive is False:
            # Slurm refuses tasks that do not fit on a node.
            request = replace(request, mib_per_cpu=None, cpus_per_task=draw(maybe_whole(1, 4)))
            return replace(request, tasks_per_node=draw(whole(1, 4)))
        case "exclusive" if request.mgpu == 0 or request.per_job is not None:
            return replace(request, exclusive=True, gpu_type=None)
        case "both" if request.per_node is not None and request.gpu_type is not None:
            return replace(request, per_job=draw(whole(1, 12)))
        case "named":
            listed, counts = draw(some_of(None, 2, 3)), draw(some_of((), (2,), (1, 3)))
            return replace(
                request,
                nodes=None,
                most_nodes=None,
                listed_nodes=listed,
                feature_nodes=counts,
                constraint=None,
            )
    return request


_EVERY_REQUEST = every_request()


@st.composite
def queued(draw: st.DrawFn, *, every: bool = False) -> tuple[Request, bool]:
    """Draw a job and whether it runs; a running job with GPUs may have an allocated type."""
    job, running = draw(_EVERY_REQUEST if every else _FULL_REQUESTS), draw(st.booleans())
    job = replace(job, exclusive=False)
    if running and job.mgpu and not job.only_parts and job.named_type is None:
        job = replace(job, given_type=draw(some_of(None, *GPU_TYPES)))
    return job, running
