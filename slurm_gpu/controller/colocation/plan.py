"""From the planner's words to Slurm's: who starts where next, and with how many shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_gpu.colocation.planner import Belief, Gpu, Member, Planner, View
from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.colocation.belief import Learned
from slurm_gpu.controller.colocation.book import Book
from slurm_gpu.controller.colocation.rooms import Place, Room

MakePlanner = Callable[[Belief], Planner]


class Waiting(NamedTuple):
    """A job that waits for its place."""

    agreed: Agreed
    least: int
    """Shards that it needs."""
    cpus: int
    memory_mib: int


class Act(NamedTuple):
    """A job that starts now."""

    job_id: int
    place: Place
    shards: int
    beside: tuple[int, ...]


def choose(
    now_s: float,
    rooms: Mapping[str, Room],
    waiting: Sequence[Waiting],
    running: Mapping[int, tuple[str, float, float]],
    book: Book,
    belief: tuple[int, float | None],
    make: MakePlanner,
    busy: frozenset[str],
) -> list[Act]:
    """One job at most for each node, as where the next one lands is known only once this one has started.

    `running` has (key, seconds done, seconds left) of jobs on GPUs, `belief` how many are together at most,
    and the slowdown that nobody is to be beyond; `busy` are nodes on which a job is about to start.
    """
    known = [one for one in waiting if one.agreed.key in book.profiles]
    least = min((one.least for one in known), default=0)
    gpus = [
        gpu
        for room in rooms.values()
        for gpu in room.gpus
        if not gpu.is_others and gpu.free >= least and all(job in running for job in gpu.sharers)
    ]
    if not known or not gpus:
        return []
    there = {running[job][0] for gpu in gpus for job in gpu.sharers}
    keys = sorted(there | {one.agreed.key for one in known})
    index = {key: position for position, key in enumerate(keys)}
    planner = make(Learned(book, keys, *belief))
    view = View(
        now_s=now_s,
        waiting=tuple(
            Member(
                job=one.agreed.job.job_id,
                application=index[one.agreed.key],
                left_s=book.profiles[one.agreed.key].alone_s,
                submit_s=one.agreed.job.submit_s or 0,
            )
            for one in known
        ),
        gpus=tuple(
            Gpu(
                tuple(
                    Member(job=job, application=index[key], left_s=max(left_s, 1.0), done_s=done_s)
                    for job in gpu.sharers
                    for key, done_s, left_s in (running[job],)
                )
            )
            for gpu in gpus
        ),
    )
    by_id = {one.agreed.job.job_id: one for one in known}
    acts: list[Act] = []
    taken = set(busy)
    smallest = book.smallest(known[0].agreed.of or 1)
    starts = sorted(planner.choose(view), key=lambda start: gpus[start.gpu].place)
    for start in starts:
        place = gpus[start.gpu].place
        if place.node in taken:
            continue
        taken.add(place.node)
        is_last = len(gpus[start.gpu].sharers) + 1 >= belief[0]
        leave = smallest - 1 if is_last else None
        act = _act(rooms[place.node], place, by_id[start.jobs[0]], gpus[start.gpu].sharers, leave)
        if act is not None:
            acts.append(act)
    return acts


def _act(room: Room, place: Place, job: Waiting, beside: Sequence[int], leave: int | None) -> Act | None:
    """Onto this GPU, or onto the first idle one where it was to be alone there; None where it cannot be."""
    if job.cpus > room.cpus or job.memory_mib > room.memory_mib:
        return None
    positions = [place.position]
    if not beside:  # idle GPUs of a node are alike to a planner, and Slurm takes the first
        positions = [gpu.place.position for gpu in room.gpus if not gpu.sharers and not gpu.is_others]
    for position in positions:
        shards = room.size_for(position, job.least, leave)
        if shards is not None:
            return Act(job.agreed.job.job_id, Place(place.node, position), shards, tuple(beside))
    return None
