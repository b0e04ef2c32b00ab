"""Describe applications that have never shared a GPU, and how similar two of them are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.read import application_and_size

Floats = NDArray[np.float64]
# A line fits up to this many points exactly.
_LINE = 2


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one application with one input."""

    family: str
    """The application without its input; all batch sizes of a model belong to the same family."""
    size: float | None = None
    """Size of the input."""
    uses: tuple[float | None, ...] = ()
    """Other values of the application when running alone, in the same order for all applications."""


def traits_of_table(table: Measured) -> tuple[Traits, ...]:
    """Derive traits from the applications' names and their speeds when running alone.

    The traits contain only one use: the duration of a step, in octaves.
    """
    found = []
    for name, alone in zip(table.names, table.alone_per_s, strict=True):
        family, size = application_and_size(name)
        found.append(Traits(family, size, (None if alone is None else -math.log2(alone),)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Likeness:
    """The similarity of each pair of n applications."""

    same_family: Floats
    """(n, n) 1 if both belong to the same family; otherwise 0."""
    octaves: Floats
    """(n, n) difference of their sizes in octaves; an unknown size counts as the mean of its family."""
    uses: Floats
    """(n, n) distance between their uses, in standard deviations; an unknown use counts as the mean."""
    odd: Floats
    """(n, uses) deviation of each use from its family's linear fit over sizes, in standard deviations.

    For example, a step may take longer alone than smaller and larger inputs suggest. If a step with
    co-runners nevertheless takes as long as expected, the application loses less speed than similar ones. The
    value is 0 if the family has fewer than three members.
    """


def likeness(traits: Sequence[Traits]) -> Likeness:
    """Compute the similarity of applications; raise ValueError if their numbers of uses differ."""
    families = {family: at for at, family in enumerate(dict.fromkeys(one.family for one in traits))}
    family = np.array([families[one.family] for one in traits], dtype=np.intp)
    octave = _octaves(traits, family)
    if len({len(one.uses) for one in traits}) > 1:
        raise ValueError("all applications must have the same number of uses; unknown uses are None")
    uses = np.array([[math.nan if use is None else use for use in one.uses] for one in traits], dtype=float)
    standard = _standard(uses.reshape(len(traits), -1))
    return Likeness(
        (family[:, None] == family).astype(float),
        np.abs(octave[:, None] - octave),
        _distance(standard),
        _from_line(standard, octave, family),
    )


def _octaves(traits: Sequence[Traits], family: NDArray[np.intp]) -> Floats:
    """Return the sizes in octaves, (n); an unknown size is the mean of its family.

    Every application needs a size, since similarity is computed from the distances between points.
    """
    size = np.array(
        [math.log2(one.size) if one.size is not None and one.size > 0 else math.nan for one in traits]
    )
    known = ~np.isnan(size)
    count = np.bincount(family[known], minlength=len(traits))
    middle = np.bincount(family[known], size[known], minlength=len(traits)) / np.maximum(count, 1)
    return np.asarray(np.where(known, size, middle[family]))


def _standard(columns: Floats) -> Floats:
    known = ~np.isnan(columns)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, columns, 0).sum(axis=0) / count
    from_mean = np.where(known, columns - mean, 0)
    deviation = np.sqrt((from_mean**2).sum(axis=0) / count)
    return np.asarray(from_mean / np.where(deviation > 0, deviation, 1))


def _distance(points: Floats) -> Floats:
    return np.asarray(np.sqrt(((points[:, None] - points) ** 2).sum(axis=2)))


def _from_line(points: Floats, octave: Floats, family: NDArray[np.intp]) -> Floats:
    """Return the residuals (n, columns) of each family's least-squares fit over sizes."""
    odd = np.zeros_like(points)
    for one in range(int(family.max(initial=-1)) + 1):
        members = np.flatnonzero(family == one)
        if len(members) > _LINE:
            line = np.column_stack((np.ones(len(members)), octave[members] - octave[members].mean()))
            odd[members] = points[members] - line @ np.linalg.lstsq(line, points[members], rcond=None)[0]
    return odd
