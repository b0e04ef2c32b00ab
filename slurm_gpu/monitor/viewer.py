"""The viewer of a page, and the data that they may see, for every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.requests import HTTPConnection


class NotSignedInError(Exception):
    """No user is signed in; answered with 401."""


class Visibility(NamedTuple):
    """A part of an answer's cache key that separates viewers by their rights."""

    everything: bool
    user: str
    """The user whose jobs are shown in full; "" with `everything`."""
    uid: int | None = None
    """None if unknown."""

    def may_see(self, user: str, uid: int | None = None) -> bool:
        """Return whether jobs of `user` (`uid` if Slurm reports it) are shown in full."""
        return self.everything or self.owns(user, uid)

    def owns(self, user: str, uid: int | None = None) -> bool:
        """Return whether jobs are the viewer's own, by uid, as slurm-gpudbd decides.

        A reassigned name gives no access to jobs of its previous owner. Names are compared only for a viewer
        whose name comes from a reverse proxy, and who has no uid on this host.
        """
        if uid is None:
            return False
        return uid == self.uid if self.uid is not None else user != "" and user == self.user


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in user; `uid` is None for a user of a reverse proxy who does not exist on this host."""

    user: str
    uid: int | None
    operator: bool
    by_link: bool = False
    """Whether the viewer has a session, which can be ended here."""

    @property
    def visibility(self) -> Visibility:
        """Return the rights of the viewer: all for operators, otherwise their own."""
        return Visibility(True, "") if self.operator else self.own

    @property
    def own(self) -> Visibility:
        """Return the viewer's own part, even for operators."""
        return Visibility(False, self.user, self.uid)


ViewerOf = Callable[[HTTPConnection], Viewer]


# Key of the Viewer in a request's scope, set by slurm_gpu.monitor.signin.
VIEWER = "slurm_gpu.viewer"


def viewer_of(request: HTTPConnection) -> Viewer:
    """Return the viewer of a request; raise NotSignedInError."""
    viewer = request.scope.get(VIEWER)
    if not isinstance(viewer, Viewer):
        raise NotSignedInError("sign in first: `slurm-gpu web` prints a link")
    return viewer
