"""Convert the planner's decisions to Slurm's terms: the jobs to start, and their nodes and shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_gpu.colocation.planner import Member, PlannerGpu, PlannerView
from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.colocation.belief import StoreBelief
from slurm_gpu.controller.colocation.free_shards import CorunGpu, GpuPlace, SharedNode
from slurm_gpu.controller.colocation.job_history import CorunProgress
from slurm_gpu.controller.colocation.serving import Server
from slurm_gpu.controller.colocation.store import ColocationStore

# Maximum decisions per cycle of a planner that decides about one GPU at a time; each decision scans all GPUs.
_MOST_ANSWERS = 4
# Planners receive at least this run time for a running job, to distinguish it from a waiting job.
_STARTED_S = 1e-9


class WaitingSharer(NamedTuple):
    """A job that waits for a place on a shared GPU."""

    agreed: Agreed
    least: int
    """Number of shards that the job needs."""
    cpus: int
    memory_mib: int


class StartAction(NamedTuple):
    """A job to start now."""

    job_id: int
    place: GpuPlace
    shards: int
    co_runners: tuple[int, ...]
    is_trial: bool
    """Whether the job shares the GPU for a trial, because the jobs' speeds together are unknown."""


def choose(
    now_s: float,
    rooms: Mapping[str, SharedNode],
    waiting: Sequence[WaitingSharer],
    running: Mapping[int, CorunProgress],
    store: ColocationStore,
    server: Server,
    busy: frozenset[str],
    not_tried: frozenset[frozenset[str]] = frozenset(),
) -> list[StartAction]:
    """Return the jobs to start now, at most one per node.

    The GPU of a node's next job is known only after the previous job has started. The server's belief must
    contain the keys of all jobs (see Planners.server). `running` contains the progress of every job on a GPU.
    `busy` names the nodes on which a job is about to start. No trial starts for a pair of keys in
    `not_tried`. A planner also receives full GPUs, because it plans the jobs that will run on them later.
    """
    known = {one.agreed.job.job_id: one for one in waiting if one.agreed.key in store.profiles}
    gpus = [
        gpu
        for _, room in sorted(rooms.items())
        for gpu in room.gpus
        if not gpu.is_others and all(job in running for job in gpu.sharers)
    ]
    least = min((one.least for one in known.values()), default=0)
    belief, taken = server.belief, set(busy)
    belief.update(
        {job for gpu in gpus if gpu.free < least for job in gpu.sharers},
        not_tried,
        [job for job, one in running.items() if not one.is_whole],
    )
    acts: list[StartAction] = []
    for _ in range(_MOST_ANSWERS if server.answers_one_by_one else 1):
        # Planners that decide about one GPU at a time are called only for nodes on which a job may start.
        asked = [gpu for gpu in gpus if not (server.answers_one_by_one and gpu.place.node in taken)]
        if not known or not any(gpu.free >= least and gpu.place.node not in taken for gpu in asked):
            break
        starts = server.planner.choose(_view(now_s, asked, known.values(), running, store, server))
        if not starts:
            break
        for start in sorted(starts, key=lambda start: asked[start.gpu].place):
            gpu = asked[start.gpu]
            if gpu.place.node in taken:
                continue
            act = None
            job = known[start.jobs[0]]
            members = [*_running(gpu, running, belief), _waiting(job, store, belief)]
            if belief.may_share(members):
                leave = _left_there(gpu, store, job, belief.most_together)
                act = _act(rooms[gpu.place.node], gpu.place, job, gpu.sharers, leave)
            if act is not None:
                if len(members) > 1 and belief.is_unmeasured(tuple(one.application for one in members)):
                    act = act._replace(is_trial=True)
                    belief.not_tried.add(frozenset(belief.keys[one.application] for one in members))
                acts.append(act)
                del known[act.job_id]
            if act is not None or server.answers_one_by_one:
                taken.add(gpu.place.node)
    return acts


def _view(
    now_s: float,
    gpus: Sequence[CorunGpu],
    waiting: Iterable[WaitingSharer],
    running: Mapping[int, CorunProgress],
    store: ColocationStore,
    server: Server,
) -> PlannerView:
    belief = server.belief
    return PlannerView(
        now_s=now_s,
        waiting=tuple(_waiting(one, store, belief) for one in waiting),
        gpus=tuple(
            PlannerGpu(tuple(_running(gpu, running, belief)), f"{gpu.place.node}/{gpu.place.position}")
            for gpu in gpus
        ),
    )


def _waiting(one: WaitingSharer, store: ColocationStore, belief: StoreBelief) -> Member:
    return Member(
        job=one.agreed.job.job_id,
        application=belief.index(one.agreed.key),
        left_s=max(store.profiles[one.agreed.key].alone_s, 1.0),
        submit_s=one.agreed.job.submit_s or 0,
    )


def _running(gpu: CorunGpu, running: Mapping[int, CorunProgress], belief: StoreBelief) -> Iterator[Member]:
    for job in gpu.sharers:
        one = running[job]
        yield Member(
            job=job,
            application=belief.index(one.key),
            left_s=max(one.left_s, 1.0),
            done_s=one.done_s,
            ran_s=max(one.done_s + one.lost_s, _STARTED_S),
        )


def _left_there(gpu: CorunGpu, store: ColocationStore, job: WaitingSharer, most_together: int) -> int | None:
    """Return the maximum number of shards that may stay free on the GPU; None if other jobs may join."""
    is_last = len(gpu.sharers) + 1 >= most_together
    return store.smallest(job.agreed.of or 1) - 1 if is_last else None


def _act(
    room: SharedNode, place: GpuPlace, job: WaitingSharer, co_runners: Sequence[int], leave: int | None
) -> StartAction | None:
    """Return the start on this GPU, or on a suitable idle GPU if the job starts alone; None if impossible."""
    if job.cpus > room.cpus or job.memory_mib > room.memory_mib:
        return None
    positions = [place.position]
    if not co_runners:  # a planner does not distinguish the idle GPUs of a node, and Slurm uses the first one
        positions = [gpu.place.position for gpu in room.gpus if not gpu.sharers and not gpu.is_others]
    for position in positions:
        shards = room.size_for(position, job.least, leave)
        if shards is not None:
            return StartAction(
                job.agreed.job.job_id, GpuPlace(place.node, position), shards, tuple(co_runners), False
            )
    return None
