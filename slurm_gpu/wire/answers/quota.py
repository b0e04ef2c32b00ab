"""What GET /v1/quota/USER answers with: docs/api.md explains each key. slurm-gpuctld told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from slurm_gpu.errors import DatabaseError


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

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read an answer; keys that a newer version adds are left. Raises DatabaseError."""
        try:
            required = {field.name: value[field.name] for field in fields(cls) if field.name != "uid"}
            return cls(**required, uid=value.get("uid"))
        except (KeyError, TypeError) as error:
            raise DatabaseError(f"slurm-gpudbd answered limits that cannot be read: {error!r}") from error
