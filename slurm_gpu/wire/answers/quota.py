"""The answer to GET /v1/quota/USER, reported by slurm-gpuctld; docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A user's limits, with the keys of `slurm-gpu quota --json`; if they are None, `why` is the reason."""

    user: str
    as_of_s: float
    limits: Sequence[Mapping[str, Any]] | None
    why: str | None
    uid: int | None = None
    """The user's uid on slurm-gpuctld's host; None if unknown."""

    def seen_by(self, uid: int | None) -> Self:
        """Return these limits, or the reason why a user with this name and `uid` must not see them."""
        if None in (uid, self.uid) or uid == self.uid:
            return self
        why = (
            f"{self.user} is uid {self.uid} on slurm-gpuctld's host, not {uid}: the limits are another user's"
        )
        return replace(self, limits=None, why=why)
