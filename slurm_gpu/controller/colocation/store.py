"""Store data about jobs that share GPUs: their resource use and speeds, and pairs that must not share.

The file is in StateSaveLocation, which all slurmctld hosts share, so slurm-gpuctld on another host can take
over. Jobs with the same key are assumed to do the same work.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from slurm_gpu.controller.colocation.job_history import RunKey
from slurm_gpu.controller.snapshot.share_table import ShareTable
from slurm_gpu.files.state_file import read_state, write_state
from slurm_gpu.slurm.client import SlurmSettings

log = logging.getLogger("slurm-gpuctld")

FILE_NAME = "colocation.json"
# Additional memory that must remain free, as a share of each job's memory.
HEADROOM = 0.10
_VERSION = 1
_MOST_KEYS = 5000
# Maximum weight of earlier runs in a mean, as a number of runs, because the work of a key may change.
_COUNTED_RUNS = 10
_LEAST_SPEED = 0.02
# Before the first fit, the probability that a speed estimated from utilisation stays within the guarantee. In
# half of all pairs, both speeds are assumed to do so.
_EVEN_ODDS = math.sqrt(0.5)


@dataclass(frozen=True, slots=True)
class KeyProfile:
    """Properties of the jobs with one key when each has a GPU of its own."""

    runs: int
    alone_s: float
    """Mean time from start to end."""
    memory_frac: float
    """Maximum fraction of GPU memory that any run used."""
    util_frac: float | None
    """Mean GPU utilisation; None if it was not measured."""
    idlest: tuple[float, ...] = ()
    """The result of `idlest.idlest`, averaged over runs; () if no timeline is known."""


class PairPrediction(NamedTuple):
    """The predicted speed of a job next to another, relative to running alone."""

    speed: float
    lower: float
    """The lower end of the speed's interval (see colocation.trials.CONFIDENCE)."""
    chance: float
    """The probability that the speed stays within the guaranteed slowdown; 0 without a guarantee."""


def time_sliced(one: KeyProfile | None, other: KeyProfile | None) -> float:
    """Return the predicted speed of two jobs that alternate on a GPU, from their utilisation when alone."""
    both = sum(1.0 if who is None or who.util_frac is None else who.util_frac for who in (one, other))
    return 1.0 if both <= 1 else 1 / both


class ColocationStore:
    """The learned data about jobs that share GPUs, by the keys that job_submit.lua assigns."""

    def __init__(self) -> None:
        self.profiles: dict[str, KeyProfile] = {}
        self.speeds: dict[tuple[str, str], tuple[float, int]] = {}
        """For each pair, the speed of the first job when it runs with the second, and the number of
        measurements.
        """
        self.apart: set[frozenset[str]] = set()
        """Pairs of keys whose jobs must not share; a set of one key means two jobs with that key."""
        self.predicted: Mapping[tuple[str, str], PairPrediction] = {}
        """Speeds of unmeasured pairs, predicted from measured pairs (pair_fit.py); not stored on disk."""
        self.lost_s: dict[RunKey, float] = {}
        """Seconds that running jobs had lost to co-runners when their last trial ended."""
        self._forgets = False
        self.is_changed = False
        """Whether the store has changed since it was last written."""
        self.version = 0
        """A number that changes whenever the belief of a planner may change."""

    def _change(self) -> None:
        self.is_changed = True
        self.version += 1

    def predict(self, speeds: Mapping[tuple[str, str], PairPrediction]) -> None:
        """Set the predicted speeds of unmeasured pairs."""
        if speeds != self.predicted:
            self.predicted = speeds
            self.version += 1

    def ran_alone(
        self,
        key: str,
        seconds: float,
        memory_frac: float,
        util_frac: float | None,
        idlest: Sequence[float] = (),
    ) -> None:
        """Add a complete run of a job that had a GPU of its own."""
        before = self.profiles.pop(key, None)
        self._change()
        if before is None:
            self.profiles[key] = KeyProfile(1, seconds, memory_frac, util_frac, tuple(idlest))
        else:
            part = 1 / min(before.runs + 1, _COUNTED_RUNS)
            util = util_frac if before.util_frac is None else before.util_frac
            if util is not None and util_frac is not None:
                util += (util_frac - util) * part
            self.profiles[key] = KeyProfile(
                before.runs + 1,
                before.alone_s + (seconds - before.alone_s) * part,
                max(before.memory_frac, memory_frac),
                util,
                tuple(_updated(before.idlest, idlest, part)),
            )
        while len(self.profiles) > _MOST_KEYS:  # drop the least recently seen keys
            if not self._forgets:
                log.warning(
                    "more than %d keys share GPUs: the least recently seen keys are dropped", _MOST_KEYS
                )
            self._forgets = True
            gone = next(iter(self.profiles))
            del self.profiles[gone]
            self.speeds = {pair: one for pair, one in self.speeds.items() if gone not in pair}
            self.apart = {pair for pair in self.apart if gone not in pair}

    def ran_with(self, key: str, other: str, speed: float) -> None:
        """Add the measured speed of a job with a co-runner, relative to running alone."""
        speed = min(max(speed, _LEAST_SPEED), 1.0)
        mean, times = self.speeds.get((key, other), (speed, 0))
        times = min(times + 1, _COUNTED_RUNS)
        self.speeds[key, other] = mean + (speed - mean) / times, times
        self._change()

    def lost(self, run: RunKey, seconds: float) -> None:
        """Record the total time that a job has lost by the end of a trial."""
        self.lost_s[run] = seconds
        self.is_changed = True

    def keep_lost(self, running: Collection[RunKey]) -> None:
        """Drop the lost time of jobs that no longer run."""
        if not self.lost_s.keys() <= set(running):
            self.lost_s = {run: seconds for run, seconds in self.lost_s.items() if run in running}
            self.is_changed = True

    def part(self, key: str, other: str) -> None:
        """Never let jobs with these keys share a GPU again."""
        self.apart.add(frozenset((key, other)))
        self._change()

    def needed_more(self, key: str) -> None:
        """Raise the memory estimate of a key, because its job failed although it should have fitted."""
        known = self.profiles.get(key)
        if known is not None:
            self.profiles[key] = replace(known, memory_frac=min(1.0, known.memory_frac * (1 + HEADROOM)))
            self._change()

    def shards(self, key: str, of: int) -> int | None:
        """Return the number of shards that a key's memory requires, with headroom; None if unknown."""
        known = self.profiles.get(key)
        if known is None:
            return None
        return min(of, max(1, math.ceil(known.memory_frac * (1 + HEADROOM) * of - 1e-9)))

    def smallest(self, of: int) -> int:
        """Return the smallest number of shards that any known key requires."""
        return min((self.shards(key, of) or of for key in self.profiles), default=1)

    def table(self, of: int) -> ShareTable:
        """Return the table for job_submit.lua."""
        return ShareTable(of, {key: self.shards(key, of) or of for key in self.profiles})

    def speed(self, key: str, others: Sequence[str]) -> float:
        """Return the predicted speed with these co-runners, relative to running alone.

        The speed with each co-runner is measured, predicted by a fit or, without a fit, estimated from
        utilisation. With several co-runners, the times that they add to a second of work are summed.
        """
        return 1 / (1 + sum(1 / self._pair_speed(key, other) - 1 for other in others))

    def _pair_speed(self, key: str, other: str) -> float:
        if (key, other) in self.speeds:
            return self.speeds[key, other][0]
        if (key, other) in self.predicted:
            return self.predicted[key, other].speed
        return time_sliced(self.profiles.get(key), self.profiles.get(other))

    def is_measured(self, keys: Sequence[str]) -> bool:
        """Return whether the speed of each of these jobs was measured next to every other one."""
        return all(pair in self.speeds for pair in permutations(keys, 2))

    def prediction(self, key: str, other: str, cap: float) -> PairPrediction:
        """Return the measured or predicted speed with a co-runner; `cap` is the guaranteed slowdown."""
        speed = self._pair_speed(key, other)
        keeps = speed * cap >= 1
        if (key, other) in self.speeds:
            return PairPrediction(speed, speed, 1.0 if keeps else 0.0)
        if (key, other) in self.predicted:
            return self.predicted[key, other]
        return PairPrediction(speed, _LEAST_SPEED, _EVEN_ODDS if keeps else 0.0)

    def may_meet(self, keys: Sequence[str]) -> bool:
        """Return False if any two of these jobs must be kept apart."""
        return not any(frozenset(pair) in self.apart for pair in combinations(keys, 2))

    def may_be_together(self, keys: Sequence[str]) -> bool:
        """Return whether these jobs may share a GPU and fit in its memory together, with headroom."""
        if not self.may_meet(keys):
            return False
        if any(key not in self.profiles for key in keys):
            return False
        return sum(self.profiles[key].memory_frac for key in keys) * (1 + HEADROOM) <= 1

    def to_json(self, at_s: float) -> dict[str, Any]:
        """Return the JSON object that is described in section 6 of docs/contracts.md."""
        return {
            "version": _VERSION,
            "at_s": int(at_s),
            "profiles": {key: asdict(one) for key, one in self.profiles.items()},
            "speeds": [[*pair, speed, times] for pair, (speed, times) in self.speeds.items()],
            "apart": [sorted(pair) * (2 if len(pair) == 1 else 1) for pair in self.apart],
            "lost": [[*run, seconds] for run, seconds in self.lost_s.items()],
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> ColocationStore:
        """Parse the output of `to_json`; raise ValueError, KeyError or TypeError for anything else."""
        if plain["version"] != _VERSION:
            raise ValueError(f"written by another version of slurm-gpu ({plain['version']})")
        store = cls()
        for key, one in plain["profiles"].items():
            util = one["util_frac"]
            found = store.profiles[str(key)] = KeyProfile(
                int(one["runs"]),
                float(one["alone_s"]),
                float(one["memory_frac"]),
                None if util is None else float(util),
                tuple(map(float, one.get("idlest", ()))),
            )
            if not (0 < found.alone_s < math.inf and 0 <= found.memory_frac < math.inf):
                raise ValueError(f"{found} of {key}")
            uses = (*found.idlest, 0.0 if found.util_frac is None else found.util_frac)
            if not all(0 <= one < math.inf for one in uses):
                raise ValueError(f"{found} of {key}")
        for key, other, speed, times in plain["speeds"]:
            if not 0 < speed <= 1:
                raise ValueError(f"invalid speed of {key} with {other}: {speed}")
            store.speeds[str(key), str(other)] = float(speed), int(times)
        store.apart = {frozenset(map(str, pair)) for pair in plain["apart"]}
        for job_id, start_s, seconds in plain.get("lost", ()):
            if not 0 <= seconds < math.inf:
                raise ValueError(f"invalid lost time of job {job_id}: {seconds}")
            store.lost_s[RunKey(int(job_id), int(start_s))] = float(seconds)
        return store


def _updated(before: Sequence[float], now: Sequence[float], part: float) -> Iterator[float]:
    for was, one in zip_longest(before, now):
        yield one if was is None else was if one is None else was + (one - was) * part


def path_of(settings: SlurmSettings) -> Path:
    """Return the path of the store in Slurm's StateSaveLocation."""
    return Path(settings.raw.get("StateSaveLocation", "/var/spool/slurmctld")) / "slurm-gpu" / FILE_NAME


def read(path: Path) -> ColocationStore:
    """Return the store, or an empty store if the file is missing; raise OutsideError on failure."""
    found = read_state(path, ColocationStore.from_json, "; move it away to learn from the beginning")
    return ColocationStore() if found is None else found


def write(path: Path, store: ColocationStore, at_s: float, owner_uid: int) -> None:
    """Write the store, readable only by SlurmUser (`owner_uid`); raise OutsideError on failure."""
    write_state(path, store.to_json(at_s), owner_uid)
    store.is_changed = False
