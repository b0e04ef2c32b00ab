"""Select the planner that the policy names, or annealing while the named planner is unavailable.

A learned planner is loaded from the file that `slurm-gpu colocation train` writes, and reloaded when the file
changes. Annealing requires neither a file nor a library.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.planner import Planner
from slurm_gpu.colocation.registry import DEFAULT, Setting, planner
from slurm_gpu.controller.colocation.belief import StoreBelief
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.policy.lua.installed import ColocationInForce

if TYPE_CHECKING:  # only learned planners and planners that use profiles need numpy
    from slurm_gpu.colocation.learned.net import Net
    from slurm_gpu.colocation.profiles.profile import ApplicationProfile

log = logging.getLogger("slurm-gpuctld")

# Evaluations of annealing per plan: 64 GPUs and 200 waiting jobs take about 30 ms, and the next cycle
# continues from the result.
EVALUATIONS = 4_000
# Maximum number of keys in a belief; a belief with more keys is rebuilt.
_MOST_KEYS = 1000
_WITHOUT_PROFILES = frozenset({"sjf", "greedy", "blossom", "lp", "annealing"})

Make = Callable[[str, Setting], Planner]


@dataclass(frozen=True, slots=True)
class Serving:
    """Describes the planner in use, for status reports."""

    asked: str
    serves: str
    why: str | None = None
    """The reason why the requested planner is not used; None if it is used."""


@dataclass(slots=True)
class Server:
    """The planner for the jobs of one list of partitions, and its belief."""

    belief: StoreBelief
    planner: Planner
    name: str
    made_of: object

    @property
    def answers_one_by_one(self) -> bool:
        """Whether the planner decides about one GPU per call."""
        return self.name in LEARNED_PLANNERS


class Planners:
    """Manages one server per list of partitions.

    A planner continues from its last plan for the same jobs and GPUs.
    """

    def __init__(self, make: Make = planner) -> None:
        self._make = make
        self._servers: dict[str, Server] = {}
        self._terms: tuple[int, float | None] | None = None
        self._net: Net | None = None
        self._mark: object = None
        """The requested planner and model for which `serving` was selected, and the version of the model's
        file.
        """
        self.serving: Serving | None = None

    def server(
        self, partitions: str, policy: ColocationInForce, store: ColocationStore, keys: Iterable[str]
    ) -> Server:
        """Return the server for jobs in these partitions; `keys` are the keys of all such jobs."""
        if self._terms != (policy.jobs_per_gpu, policy.slowdown):
            self._terms = policy.jobs_per_gpu, policy.slowdown
            self._servers.clear()
        serving = self._selected(policy)
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

    def _selected(self, policy: ColocationInForce) -> Serving:
        """Return the planner in use; select it again if the policy or the model's file has changed."""
        learns = policy.planner in LEARNED_PLANNERS
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
                log.info("planner: %s", policy.planner)
            else:
                log.warning("planner %s is used, not %s: %s", DEFAULT, policy.planner, why)
        return self.serving

    def _try(self, policy: ColocationInForce) -> None:
        """Create the planner once without using it, so any error is raised now."""
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
                slowed=1.0,  # the cap is the guaranteed slowdown in policy.yaml
            ),
        )


def _mark(model: Path) -> object:
    """Return a value that identifies this version of the file; None if the file does not exist."""
    try:
        there = model.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.errno
    return there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns


def _read(name: str, model: Path | None) -> Net:
    """Load a model; raise InputError for an invalid file and ValueError for a missing file."""
    if model is None or _mark(model) is None:
        where = "policy.yaml names no model" if model is None else f"{model} does not exist yet"
        raise ValueError(f"{where}; `slurm-gpu colocation train` creates it")
    # Import the module here, because numpy needs memory that sites without a model can save.
    from slurm_gpu.colocation.learned.models import read_for

    return read_for(model, name).net


def _profiles(keys: Sequence[str], store: ColocationStore) -> list[ApplicationProfile]:
    """Return profiles for planners, with memory as a fraction of GPU memory.

    A key that is no longer in the store is assumed to use all memory.
    """
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
