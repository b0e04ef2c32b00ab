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
    uid: int | None = None
    """None where nobody knows it."""

    def may_see(self, user: str, uid: int | None = None) -> bool:
        """Whether jobs of `user` (`uid` where Slurm knows it) are shown in full."""
        return self.everything or self.owns(user, uid)

    def owns(self, user: str, uid: int | None = None) -> bool:
        """Whether they are the viewer's own: by uid, as slurm-gpudbd judges.

        A name that was given to another person opens nothing of who had it before. By name only for a viewer
        whom a reverse proxy names, and whose uid this host does not know.
        """
        if uid is None:
            return False
        return uid == self.uid if self.uid is not None else user != "" and user == self.user


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in user; `uid` is None where a reverse proxy names one whom this host does not know."""

    user: str
    uid: int | None
    operator: bool
    by_link: bool = False
    """Whether there is a session, which can be ended here."""

    @property
    def flavour(self) -> Flavour:
        """Operators all see the same, and everybody else what is theirs."""
        return Flavour(True, "") if self.operator else self.own

    @property
    def own(self) -> Flavour:
        """What is theirs, whatever else they may see."""
        return Flavour(False, self.user, self.uid)


ViewerOf = Callable[[HTTPConnection], Viewer]


VIEWER = "slurm_gpu.viewer"
"""Where slurm_gpu.monitor.signin leaves the Viewer, in a request's scope."""


def viewer_of(request: HTTPConnection) -> Viewer:
    """Who asks; raises NotSignedInError."""
    viewer = request.scope.get(VIEWER)
    if not isinstance(viewer, Viewer):
        raise NotSignedInError("sign in first: `slurm-gpu web` prints a link")
    return viewer
