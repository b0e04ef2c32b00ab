"""Who looks, and what they may see: the one place where that is decided for every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.requests import HTTPConnection


class NotSignedInError(Exception):
    """Nobody is signed in; answered with 401."""


class Flavour(NamedTuple):
    """What tells answers apart by who may see them; all that is kept of an answer is kept under it."""

    everything: bool
    user: str
    """Whose jobs are shown in full; "" where `everything` is."""

    def may_see(self, user: str) -> bool:
        """Whether jobs of `user` are shown in full."""
        return self.everything or (user != "" and user == self.user)


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in user; `uid` is None where nobody told it, as where a reverse proxy names users."""

    user: str
    uid: int | None
    operator: bool

    @property
    def flavour(self) -> Flavour:
        """Operators all see the same, and everybody else what is theirs."""
        return Flavour(True, "") if self.operator else Flavour(False, self.user)


ViewerOf = Callable[[HTTPConnection], Viewer]


VIEWER = "slurm_gpu.viewer"
"""Where slurm_gpu.monitor.signin leaves the Viewer, in a request's scope."""


def viewer_of(request: HTTPConnection) -> Viewer:
    """Who asks; raises NotSignedInError."""
    viewer = request.scope.get(VIEWER)
    if not isinstance(viewer, Viewer):
        raise NotSignedInError("sign in first: `slurm-gpu open` prints a link")
    return viewer
