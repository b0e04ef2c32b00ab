"""Merge profiles of several runs of a site's applications, and find the nearest profile for a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.profiles.gpu_models import GpuModel, transferred
from slurm_gpu.colocation.profiles.phases import MOST_PHASES, segments
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase, scaled

# Number of steps into which each run is divided when profiles are merged.
_STEPS = 64
_USES = ("util", "memory_mib", "sm", "pcie")
# Minimum distances to the profile of an application of the same kind, and of an application of another kind.
OTHER_APPLICATION, OTHER_KIND = 8.0, 16.0
_OTHER_CARD = 0.5
_UNKNOWN_SIZE = 2.0
_MOST_OCTAVES = 4.0


def merged(profiles: Sequence[ApplicationProfile]) -> ApplicationProfile:
    """Merge profiles with the same key into one profile, with the median length and the number of all runs.

    Times are fractions of each whole run. In each step, memory is the largest value, and other uses are means
    weighted by runs. Unknown values are ignored if another profile has a value. Raise ValueError if there are
    no profiles, or if their keys differ.
    """
    if not profiles:
        raise ValueError("there are no profiles to merge")
    strange = next((one for one in profiles if one.key != profiles[0].key), None)
    if strange is not None:
        raise ValueError(f"profiles of different keys cannot be merged: {profiles[0].key} and {strange.key}")
    if len(profiles) == 1:
        return profiles[0]
    runs = np.array([one.runs for one in profiles], dtype=float)
    rows = [_over_runs(np.array([_steps(one, use) for one in profiles]), runs, use) for use in _USES]
    peak = max((one for one in (p.peak("memory_mib") for p in profiles) if one is not None), default=0.0)
    ends = segments(
        np.array(
            [
                row / peak if use == "memory_mib" and peak > 0 else row
                for row, use in zip(rows, _USES, strict=True)
            ]
        ),
        MOST_PHASES,
    )
    phases = [
        ProfilePhase(
            seconds=end - begin,
            **{use: _mean_or_peak(row[begin:end], use) for row, use in zip(rows, _USES, strict=True)},
        )
        for begin, end in zip((0, *ends), ends, strict=False)
    ]
    return replace(
        profiles[0],
        phases=scaled(phases, median(one.seconds for one in profiles)),
        runs=sum(one.runs for one in profiles),
    )


def _steps(profile: ApplicationProfile, use: str) -> list[float]:
    """Return a use in each of _STEPS equal parts of the run; NaN if unknown.

    The value is that of the phase that covers most of the part. For memory, it is the greatest value of all
    phases in the part.
    """
    parts = np.zeros((len(profile.phases), _STEPS))
    begin = 0.0
    for at, end_s in enumerate(profile.ends_s):
        end = end_s / profile.seconds * _STEPS
        edges = np.arange(_STEPS + 1)
        parts[at] = np.maximum(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0)
        begin = end
    values = [math.nan if (v := getattr(phase, use)) is None else v for phase in profile.phases]
    if use == "memory_mib":
        there = np.array([[v] for v in values])
        known = np.where((parts > 0) & ~np.isnan(there), there, -1.0).max(axis=0)
        return [math.nan if v < 0 else float(v) for v in known]
    return [values[at] for at in parts.argmax(axis=0)]


def _over_runs(steps: NDArray[np.float64], runs: NDArray[np.float64], use: str) -> NDArray[np.float64]:
    known = ~np.isnan(steps)
    if use == "memory_mib":
        largest = np.where(known, steps, -1.0).max(axis=0)
        return np.where(largest < 0, np.nan, largest)
    weight = known * runs[:, None]
    total = weight.sum(axis=0)
    return np.where(
        total > 0, (np.where(known, steps, 0) * weight).sum(axis=0) / np.maximum(total, 1), np.nan
    )


def _mean_or_peak(values: NDArray[np.float64], use: str) -> float | None:
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None
    return float(known.max()) if use == "memory_mib" else float(min(known.mean(), 1.0))


@dataclass(frozen=True, slots=True)
class Match:
    """The profile in a library that is nearest to a job, converted to the job's GPU model."""

    profile: ApplicationProfile
    distance: float
    """The distance is 0 if the application, the input and the GPU model are the same.

    It is below 8 if at least the application is the same, and 16 or more if even the kind of application
    differs.
    """


class Library:
    """The profiles of a site, by key."""

    def __init__(
        self, profiles: Iterable[ApplicationProfile] = (), cards: Mapping[str, GpuModel] | None = None
    ) -> None:
        """Create a library; `cards` contains the known GPU models by name."""
        self._profiles: dict[object, ApplicationProfile] = {}
        self._cards = dict(cards or {})
        for profile in profiles:
            self.add(profile)

    def add(self, profile: ApplicationProfile) -> None:
        """Add the profile of one or more runs; merge it if the library has a profile with the same key."""
        there = self._profiles.get(profile.key)
        self._profiles[profile.key] = profile if there is None else merged([there, profile])

    def __iter__(self) -> Iterator[ApplicationProfile]:
        return iter(self._profiles.values())

    def __len__(self) -> int:
        return len(self._profiles)

    def nearest(
        self,
        application: str,
        gpu_model: str,
        *,
        kind: str = "",
        input_size: float | None = None,
        parameters: tuple[tuple[str, str], ...] = (),
    ) -> Match | None:
        """Return the profile of the same application with the nearest input.

        If there is none, return the nearest profile of the same kind or, failing that, of any kind. Return
        None if there are no profiles. A profile of another GPU model is converted if both models are known.
        Among equally near profiles, the one with the most runs is returned; if several have equally many
        runs, the first of them.
        """
        wanted = ApplicationProfile(
            application, gpu_model, (ProfilePhase(seconds=1),), kind, input_size, parameters
        )
        every = [(_distance(wanted, one), -one.runs, at, one) for at, one in enumerate(self)]
        if not every:
            return None
        distance, _, _, profile = min(every, key=lambda one: one[:3])
        there, here = self._cards.get(profile.gpu_model), self._cards.get(gpu_model)
        if profile.gpu_model != gpu_model and there is not None and here is not None:
            profile = transferred(profile, there, here)
        return Match(profile, distance)


def _distance(wanted: ApplicationProfile, there: ApplicationProfile) -> float:
    """Return the distance between two profiles.

    The application outweighs all other properties together, and a different input outweighs a different GPU.
    """
    far = 0.0
    if there.application != wanted.application:
        far += OTHER_APPLICATION if there.kind and there.kind == wanted.kind else OTHER_KIND
    if there.gpu_model != wanted.gpu_model:
        far += _OTHER_CARD
    return far + _size_distance(wanted.input_size, there.input_size) + _parameter_distance(wanted, there)


def _size_distance(one: float | None, other: float | None) -> float:
    """Return the distance between two input sizes in octaves."""
    if one == other:
        return 0.0
    if one is None or other is None or not one > 0 or not other > 0:
        return _UNKNOWN_SIZE
    return min(abs(math.log2(one) - math.log2(other)), _MOST_OCTAVES)


def _parameter_distance(one: ApplicationProfile, other: ApplicationProfile) -> float:
    """Return the fraction of parameters that differ."""
    mine, theirs = dict(one.parameters), dict(other.parameters)
    names = mine.keys() | theirs.keys()
    return sum(mine.get(name) != theirs.get(name) for name in names) / len(names) if names else 0.0
