"""Jobs for hypothesis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from .model import GPU_TYPES, Request

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
    if request.mgpu == 0 or request.only_parts:
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
        gpu_type=None if request.only_parts else draw(st.sampled_from([None, *GPU_TYPES])),
        interactive=draw(st.booleans()),
        **amounts,  # type: ignore[arg-type]
    )


@st.composite
def every_request(draw: st.DrawFn) -> Request:
    """All of that, and sockets, MPS, tasks by the node or the GPU, QOS and whole nodes."""
    request = draw(full_requests())
    qos = draw(st.sampled_from(["normal", "normal", "sg-long"]))
    request = replace(request, qos=qos, minutes=0 if draw(st.integers(0, 19)) == 0 else request.minutes)
    match draw(st.sampled_from(["", "", "", "socket", "by task", "mps", "per node", "exclusive", "both"])):
        case "socket" if request.per_job is not None:
            asked = replace(request, per_job=None, per_socket=draw(st.integers(1, 3)))
            return replace(asked, sockets=draw(st.none() | st.integers(1, 2)))
        case "by task" if request.per_job is not None and request.n_tasks is not None:
            return replace(request, per_job=None, gpu_type=None, tasks_per_gpu=draw(st.integers(1, 4)))
        case "mps" if request.only_parts:
            return replace(request, shards_per_node=None, mps_per_node=draw(st.sampled_from([10, 25, 50])))
        case "per node" if request.exclusive is False:
            return replace(request, tasks_per_node=draw(st.integers(1, 4)))
        case "exclusive" if request.mgpu == 0 or request.per_job is not None:
            return replace(request, exclusive=True, gpu_type=None)
        case "both" if request.per_node is not None and request.gpu_type is not None:
            return replace(request, per_job=draw(st.integers(1, 12)))
    return request


@st.composite
def queued(draw: st.DrawFn, *, every: bool = False) -> tuple[Request, bool]:
    """A job and whether it runs; what runs on GPUs has some type."""
    job, running = draw(every_request() if every else full_requests()), draw(st.booleans())
    job = replace(job, exclusive=False)
    if running and job.mgpu and not job.only_parts and job.named_type is None:
        job = replace(job, given_type=draw(st.sampled_from([None, *GPU_TYPES])))
    return job, running
