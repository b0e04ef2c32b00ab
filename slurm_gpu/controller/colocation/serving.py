"""Which planner decides whom jobs share with: the one that the policy names, annealing until that can.

A planner that learns is read from a file, which `slurm-gpu colocation train` writes, and read anew when it
has changed. Where it cannot be read, or a library is missing, annealing serves: it needs neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_gpu.colocation.learned import LEARNED
from slurm_gpu.colocation.planner import Planner
from slurm_gpu.colocation.registry import DEFAULT, Setting, planner
from slurm_gpu.controller.colocation.belief import StoreBelief
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.policy.lua.installed import ColocationInForce

if TYPE_CHECKING:  # only planners that learn, and those that pack by profiles, need numpy
    from slurm_gpu.colocation.learned.net import Net
    from slurm_gpu.colocation.profiles.profile import ApplicationProfile

log = logging.getLogger("slurm-gpuctld")

EVALUATIONS = 4_000
"""By annealing, for a new plan: 64 GPUs and 200 waiting jobs are planned for in some 30 ms so, and the next
look goes on from there."""
_MOST_KEYS = 1000
"""That a belief knows, before it begins anew."""
_WITHOUT_PROFILES = frozenset({"sjf", "greedy", "blossom", "lp", "annealing"})

Make = Callable[[str, Setting], Planner]


@dataclass(frozen=True, slots=True)
class Serving:
    """Who serves, for whoever asks."""

    asked: str
    serves: str
    why: str | None = None
    """Why another one serves than was asked for; None where none does."""


@dataclass(slots=True)
class Server:
    """The planner of the jobs of some partitions, and what it believes."""

    belief: StoreBelief
    planner: Planner
    name: str
    made_of: object

    @property
    def answers_one_by_one(self) -> bool:
        """Whether it decides about one GPU each time that it is asked."""
        return self.name in LEARNED


class Planners:
    """One for each list of partitions: what one remembers of its last plan is of the same jobs and GPUs."""

    def __init__(self, make: Make = planner) -> None:
        self._make = make
        self._servers: dict[str, Server] = {}
        self._terms: tuple[int, float | None] | None = None
        self._net: Net | None = None
        self._mark: object = None
        """What was asked for when `serving` was found, and the file that it learned is in."""
        self.serving: Serving | None = None

    def server(
        self, partitions: str, policy: ColocationInForce, store: ColocationStore, keys: Iterable[str]
    ) -> Server:
        """Who is to be asked now about jobs of these partitions; `keys` of all that it is asked about."""
        if self._terms != (policy.jobs_per_gpu, policy.slowdown):
            self._terms = policy.jobs_per_gpu, policy.slowdown
            self._servers.clear()
        serving = self._looked(policy)
        before = self._servers.get(partitions)
        belief = StoreBelief(store, *self._terms)
        if before is not None and before.belief.is_of(store) and len(before.belief.keys) <= _MOST_KEYS:
            belief = before.belief
        for key in keys:
            belief.index(key)
        made_of: object = serving.serves
        if serving.serves not in _WITHOUT_PROFILES:
            made_of = serving.serves, self._mark, store.version, len(belief.keys)
        if before is None or before.belief is not belief or before.made_of != made_of:
            made = self._made(serving.serves, belief, store)
            self._servers[partitions] = Server(belief, made, serving.serves, made_of)
        return self._servers[partitions]

    def _looked(self, policy: ColocationInForce) -> Serving:
        """Who serves; found out anew where another was asked for, or the file is not as it was."""
        learns = policy.planner in LEARNED
        mark = policy.planner, policy.model, _mark(policy.model) if learns and policy.model else None
        if self.serving is None or mark != self._mark:
            self._mark, self._net = mark, None
            why = None
            try:
                if learns:
                    self._net = _read(policy.planner, policy.model)
                self._try(policy)
            except (SlurmGpuError, ValueError, ImportError) as error:
                why = str(error)
            self.serving = Serving(policy.planner, policy.planner if why is None else DEFAULT, why)
            if why is None:
                log.info("planner %s decides whom jobs share with", policy.planner)
            else:
                log.warning(
                    "planner %s decides whom jobs share with, not %s: %s", DEFAULT, policy.planner, why
                )
        return self.serving

    def _try(self, policy: ColocationInForce) -> None:
        """Make one for nothing: raises what making it raises."""
        belief = StoreBelief(ColocationStore(), policy.jobs_per_gpu, policy.slowdown)
        belief.index("any")
        self._made(policy.planner, belief, ColocationStore())

    def _made(self, name: str, belief: StoreBelief, store: ColocationStore) -> Planner:
        return self._make(
            name,
            Setting(
                belief=belief,
                profiles=() if name in _WITHOUT_PROFILES else _profiles(belief.keys, store),
                capacity_mib=1.0,
                nets={} if self._net is None else {name: self._net},
                evaluations=EVALUATIONS,
                slowed=1.0,  # what policy.yaml promises is the cap, and nothing else
            ),
        )


def _mark(model: Path) -> object:
    """What tells this file from a later one of its name; None where there is none."""
    try:
        there = model.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.errno
    return there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns


def _read(name: str, model: Path | None) -> Net:
    """What a planner learned. Raises InputError where the file is not one, and ValueError where it is not."""
    if model is None or _mark(model) is None:
        where = "policy.yaml names no model" if model is None else f"{model} is not there yet"
        raise ValueError(f"{where}; `slurm-gpu colocation train` makes one")
    # Only now: numpy takes memory that who serves without a model does not need.
    from slurm_gpu.colocation.learned.models import read_for

    return read_for(model, name).net


def _profiles(keys: Sequence[str], store: ColocationStore) -> list[ApplicationProfile]:
    """As planners have them; memory in parts of the GPU's. Who was forgotten meanwhile takes all of it."""
    from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase

    found = []
    for key in keys:
        known = store.profiles.get(key)
        phase = ProfilePhase(seconds=1.0, memory_mib=1.0)
        if known is not None:
            phase = ProfilePhase(
                seconds=max(known.alone_s, 1.0), util=known.util_frac, memory_mib=known.memory_frac
            )
        found.append(ApplicationProfile(key, "", (phase,)))
    return found
