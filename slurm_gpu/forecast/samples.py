"""Define samples of waiting jobs: one row per job and moment, with the job's features at that moment.

A job may have several samples. Outcomes are available only through `known_at`, which returns only outcomes
before the time of a forecast. No forecast can therefore use later events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

SHORTEST_WAIT_S = 1.0
# The grouping by use of GPUs, and its codes.
KIND = "kind"
KINDS: Mapping[str, int] = {"cpu": 0, "gpu": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSamples:
    """Columns of n samples. Times are epoch seconds."""

    at_s: Floats
    """(n) time of the sample."""
    start_s: Floats
    """(n) start of the job; NaN if no start is known."""
    gone_s: Floats
    """(n) time when the job left the queue without a start (cancelled); NaN if no such time is known."""
    features: NDArray[np.float32]
    """(n, len(names)) features at `at_s`; NaN if unknown."""
    names: Sequence[str]
    groups: Mapping[str, Codes]
    """The group of each job (n), by grouping. Jobs of one group have similar waits."""
    alike: Codes
    """(n) code that similar jobs, such as tasks of an array, share.

    Similar jobs belong to one account and have the same request at the same moment.
    """

    def __len__(self) -> int:
        return len(self.at_s)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> QueueSamples:
        """Return the given rows."""
        groups = {name: codes[rows] for name, codes in self.groups.items()}
        arrays = ("at_s", "start_s", "gone_s", "features", "alike")
        return replace(self, groups=groups, **{name: getattr(self, name)[rows] for name in arrays})

    def known_at(self, now_s: float) -> WaitSamples:
        """Return the samples before `now_s` with the outcomes that were known then."""
        samples = self[self.at_s < now_s]
        started = samples.start_s < now_s
        gone_s = np.where(samples.gone_s < now_s, samples.gone_s, np.nan)
        until_s = np.where(started, samples.start_s, np.where(np.isnan(gone_s), now_s, gone_s))
        wait_s = np.maximum(until_s - samples.at_s, SHORTEST_WAIT_S)
        samples = replace(samples, start_s=np.where(started, samples.start_s, np.nan), gone_s=gone_s)
        return WaitSamples(now_s=now_s, samples=samples, wait_s=wait_s, started=started)

    @staticmethod
    def joined(parts: Sequence[QueueSamples]) -> QueueSamples:
        """Return the rows of all `parts`, which must have the same features and groupings.

        Codes in `alike` are renumbered, so that no code occurs in two parts.
        """
        first = parts[0]
        arrays = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(QueueSamples)
            if field.name not in ("names", "groups", "alike")
        }
        groups = {name: np.concatenate([part.groups[name] for part in parts]) for name in first.groups}
        offsets = np.cumsum([0, *(part.alike.max(initial=-1) + 1 for part in parts[:-1])])
        alike = np.concatenate([part.alike + offset for part, offset in zip(parts, offsets, strict=True)])
        return QueueSamples(names=first.names, groups=groups, alike=alike, **arrays)


@dataclass(frozen=True, slots=True)
class WaitSamples:
    """Samples with the outcomes known at a moment: the wait since the sample, and whether the job started."""

    now_s: float
    samples: QueueSamples
    wait_s: Floats
    """(n) seconds from the sample to the start or, without a start, to the last moment in the queue."""
    started: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> WaitSamples:
        return WaitSamples(self.now_s, self.samples[rows], self.wait_s[rows], self.started[rows])

    @property
    def age_days(self) -> Floats:
        """Return the ages of the samples in days, (n)."""
        return (self.now_s - self.samples.at_s) / 86400.0

    @property
    def is_cancelled(self) -> NDArray[np.bool_]:
        """Return (n) whether each job left the queue without a start, so that its full wait is unknown."""
        return ~np.isnan(self.samples.gone_s)


def codes_of(*columns: NDArray[np.generic]) -> Codes:
    """Return codes (n) from 0, which are equal for rows that are equal in all columns."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, found = np.unique(column, return_inverse=True)
        # Renumber after each column, since products of many columns would exceed 64 bits.
        code = np.unique(code * len(values) + found.ravel(), return_inverse=True)[1].ravel()
    return code
