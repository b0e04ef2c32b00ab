"""What GET /v1/quota/USER answers with: docs/api.md explains each key. slurm-gpuctld told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A user's limits, each with the keys of `slurm-gpu quota --json`; None with `why` where nobody knows."""

    user: str
    as_of_s: float
    limits: Sequence[Mapping[str, Any]] | None
    why: str | None
    uid: int | None = None
    """The user's on slurm-gpuctld's host, whose limits these are; None where it is not known."""

    def seen_by(self, uid: int | None) -> Self:
        """Return these limits for a user of this name with this uid: without the limits of another uid."""
        if None in (uid, self.uid) or uid == self.uid:
            return self
        why = f"{self.user} is uid {self.uid} on slurm-gpuctld's host, not {uid}: these are another's limits"
        return replace(self, limits=None, why=why)
