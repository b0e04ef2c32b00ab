"""Define the viewer of a page, and the data that the viewer may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.requests import HTTPConnection


class NotSignedInError(Exception):
    """Raised if no user is signed in. The answer has status 401."""


class Visibility(NamedTuple):
    """The part of an answer's cache key that separates viewers with different rights."""

    everything: bool
    user: str
    """The user whose jobs are shown in full; empty if `everything` is true."""
    uid: int | None = None
    """The viewer's uid; None if it is unknown."""

    def may_see(self, user: str, uid: int | None = None) -> bool:
        """Return whether jobs of `user` are shown in full; `uid` is None if Slurm does not report it."""
        return self.everything or self.owns(user, uid)

    def owns(self, user: str, uid: int | None = None) -> bool:
        """Return whether a user's jobs are the viewer's own; uids are compared, as in slurm-gpudbd.

        A reassigned name gives no access to jobs of its previous owner. Names are compared only for a viewer
        whose name comes from a reverse proxy and who has no uid on this host.
        """
        if uid is None:
            return False
        return uid == self.uid if self.uid is not None else user != "" and user == self.user


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in user; `uid` is None if a reverse proxy named a user who does not exist on this host."""

    user: str
    uid: int | None
    operator: bool
    by_link: bool = False
    """Whether the viewer signed in by a link and can therefore sign out here."""

    @property
    def visibility(self) -> Visibility:
        """Return the viewer's visibility: everything for operators, otherwise their own jobs."""
        return Visibility(True, "") if self.operator else self.own

    @property
    def own(self) -> Visibility:
        """Return the visibility of the viewer's own jobs only, even for operators."""
        return Visibility(False, self.user, self.uid)


ViewerOf = Callable[[HTTPConnection], Viewer]


# The key of the Viewer in the scope of a request, set by slurm_gpu.monitor.signin.
VIEWER = "slurm_gpu.viewer"


def viewer_of(request: HTTPConnection) -> Viewer:
    """Return the viewer of a request; raise NotSignedInError if there is none."""
    viewer = request.scope.get(VIEWER)
    if not isinstance(viewer, Viewer):
        raise NotSignedInError("sign in first: `slurm-gpu web` prints a link")
    return viewer
