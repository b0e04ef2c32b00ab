"""Looks: one row for a job that was seen waiting at some moment, with what was known of it then.

A job may be looked at several times. What came of it is known of the past only as far as it had happened by
the moment at which a forecast is made; `known_at` is the one way to read it, so that no forecast can be made
of what came later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

SHORTEST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSamples:
    """n rows; times are epoch seconds."""

    at_s: Floats
    """(n) when the job was seen waiting."""
    start_s: Floats
    """(n) when it started; NaN where it is not known to have."""
    gone_s: Floats
    """(n) when it left the queue without a start (was cancelled); NaN where it is not known to have."""
    features: NDArray[np.float32]
    """(n, len(names)): what was known at `at_s`; NaN for a gap."""
    names: Sequence[str]
    groups: Mapping[str, Codes]
    """By the name of a grouping, (n) which group the job is of: those of one group waited alike."""
    alike: Codes
    """(n) equal for jobs of one owner that ask for the same at the same look, such as an array's tasks."""

    def __len__(self) -> int:
        return len(self.at_s)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> QueueSamples:
        """Some of the rows."""
        groups = {name: codes[rows] for name, codes in self.groups.items()}
        arrays = ("at_s", "start_s", "gone_s", "features", "alike")
        return replace(self, groups=groups, **{name: getattr(self, name)[rows] for name in arrays})

    def known_at(self, now_s: float) -> WaitSamples:
        """What was known at `now_s` of looks that were made before."""
        looks = self[self.at_s < now_s]
        started = looks.start_s < now_s
        gone_s = np.where(looks.gone_s < now_s, looks.gone_s, now_s)
        until_s = np.where(started, looks.start_s, gone_s)
        wait_s = np.maximum(until_s - looks.at_s, SHORTEST_WAIT_S)
        hidden = np.full(len(looks), np.nan)
        looks = replace(looks, start_s=np.where(started, looks.start_s, hidden), gone_s=hidden)
        return WaitSamples(now_s=now_s, looks=looks, wait_s=wait_s, started=started)

    @staticmethod
    def joined(parts: Sequence[QueueSamples]) -> QueueSamples:
        """All rows of `parts`, which have the same features and groupings; `alike` stays apart."""
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
    """Looks as they are known at a moment: how long each job has waited since, and whether it has started."""

    now_s: float
    looks: QueueSamples
    wait_s: Floats
    """(n) of those that started the wait; of others how long they are known to have waited."""
    started: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> WaitSamples:
        return WaitSamples(self.now_s, self.looks[rows], self.wait_s[rows], self.started[rows])

    @property
    def age_days(self) -> Floats:
        """(n) how long ago each look was."""
        return (self.now_s - self.looks.at_s) / 86400.0


def codes_of(*columns: NDArray[np.generic]) -> Codes:
    """(n) numbers from 0: equal for rows that are equal in all columns."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, found = np.unique(column, return_inverse=True)
        # Renumbered each time, or the products of many columns would leave 64 bits.
        code = np.unique(code * len(values) + found.ravel(), return_inverse=True)[1].ravel()
    return code
