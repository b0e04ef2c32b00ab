"""Find GPUs and nodes that were at fault in several jobs and therefore deserve inspection.

A false accusation makes a node unavailable to all users. Accusations must therefore come from jobs of several
users, and each job that later ran well on the accused GPUs counts against an accusation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A pair of node and UUID.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The statement of one run about GPUs: they were at fault (`accuses`), or the run went well on them."""

    job: str
    user: str
    at_s: float
    """Time of the last finding."""
    since_s: float
    accuses: bool
    n_gpus: float
    devices: Sequence[Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectThresholds:
    """The thresholds for reporting a suspect."""

    jobs: int = 3
    users: int = 2
    within_s: float = 14 * 86400.0
    most_of_job: float = 0.5
    """Maximum share of its GPUs that a job may accuse; a greater share points to the job or the site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A GPU, or a node (`device` is None) with several culprits among its GPUs."""

    node: str
    device: str | None
    jobs: int
    users: int
    healthy: int
    """Number of jobs that have run well on this GPU or node since the last accusation."""
    first_s: float
    last_s: float


def suspects(
    statements: Iterable[Statement], now_s: float, rule: SuspectThresholds | None = None
) -> list[Suspect]:
    """Return the devices and nodes that enough jobs of enough users accuse, the most often accused first.

    Each job that later ran well on the accused GPUs counts against one accusation. A node is reported if it
    is accused often enough, but no single GPU of the node is.
    """
    rule = rule or SuspectThresholds()
    accusing: dict[Place, list[Statement]] = defaultdict(list)
    healthy: dict[Place, list[Statement]] = defaultdict(list)
    for item in statements:
        if now_s - item.at_s > rule.within_s:
            continue
        if not item.accuses:
            for place in item.devices:
                healthy[place].append(item)
        elif len(item.devices) <= rule.most_of_job * item.n_gpus:
            for place in item.devices:
                accusing[place].append(item)
    found = []
    nodes: dict[str, list[Place]] = defaultdict(list)
    for place, against in accusing.items():
        suspect = _judged(place[0], place[1], against, healthy[place], rule)
        if suspect is not None:
            found.append(suspect)
        else:
            nodes[place[0]].append(place)
    clear = {suspect.node for suspect in found}
    for node, places in nodes.items():
        if node not in clear and len(places) >= 2:
            against = [item for place in places for item in accusing[place]]
            well = [item for place in places for item in healthy[place]]
            suspect = _judged(node, None, against, well, rule)
            if suspect is not None:
                found.append(suspect)
    return sorted(found, key=lambda one: (-one.jobs, one.node, one.device or ""))


def _judged(
    node: str,
    device: str | None,
    against: Sequence[Statement],
    well: Sequence[Statement],
    rule: SuspectThresholds,
) -> Suspect | None:
    jobs = {item.job for item in against}
    last_s = max(item.at_s for item in against)
    since = {item.job for item in well if item.at_s > last_s} - jobs
    users = {item.user for item in against}
    if len(users) < rule.users or len(jobs) - len(since) < rule.jobs:
        return None
    return Suspect(
        node=node,
        device=device,
        jobs=len(jobs),
        users=len(users),
        healthy=len(since),
        first_s=min(item.since_s for item in against),
        last_s=last_s,
    )


def drain(node: str, index: int | None, jobs: int, users: int) -> str:
    """Return the command with which an operator drains the node."""
    gpu = "GPUs" if index is None else f"GPU {index}"
    reason = f"slurm-gpu: {gpu} slow or failing in {jobs} jobs of {users} users"
    return f'scontrol update nodename={node} state=drain reason="{reason}"'
