"""Report the limits and use of users who view them, because slurm-gpudbd itself does not have the policy."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_gpu.client.connector import DatabaseConnector
from slurm_gpu.clock import Clock
from slurm_gpu.controller.background import Background
from slurm_gpu.controller.duty import Duty, InUse, QueueView
from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.reporting.quota import quota_of
from slurm_gpu.errors import NotFoundError
from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.slurm.submission import UserAssociations
from slurm_gpu.wire.answers.quota import Quota

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

log = logging.getLogger("slurm-gpuctld")

EVERY_S = 15.0
# Maximum number of users per message. Even with dozens of limits for each user, a message is far below
# slurm-gpudbd's limit.
_AT_ONCE = 20
# Cache time of a user's accounts and QOS, which only an administrator changes.
_PLACES_KEPT_S = 600.0


class QuotaReporter(Duty):
    """Polls slurm-gpudbd in the background for users who view their limits, and reports these limits."""

    def __init__(
        self,
        connect: DatabaseConnector,
        background: Background,
        places: Callable[[str], UserAssociations],
        clock: Clock,
        uid_of: Callable[[str], int] = lambda user: pwd.getpwnam(user).pw_uid,
    ) -> None:
        super().__init__(
            clock,
            "limits are not sent to slurm-gpudbd: %s; retrying",
            "limits are sent to slurm-gpudbd again",
            every_s=EVERY_S,
            background=background,
        )
        self._connect, self._ask_places, self._uid_of = connect, places, uid_of
        self._places: dict[str, tuple[float, UserAssociations]] = {}

    def work(self, view: QueueView) -> None:
        """Poll for requested limits and send them."""
        assert view.in_use is not None
        in_use = view.in_use
        try:
            self._connect(lambda database: self.report(database, in_use))
        except NotFoundError as error:
            raise NotFoundError(f"{error}; slurm-gpudbd is too old") from error

    def report(self, database: DatabaseClient, in_use: InUse) -> None:
        """Report the limits of all users who view them."""
        wanted = database.quotas_wanted()
        by_rule = in_use.by_rule() if wanted else {}
        for at in range(0, len(wanted), _AT_ONCE):
            database.send_quotas([self._quota(user, in_use, by_rule) for user in wanted[at : at + _AT_ONCE]])

    def _quota(self, user: str, in_use: InUse, by_rule: Mapping[str, Usage]) -> Quota:
        unknown = Quota(user=user, as_of_s=in_use.snapshot.as_of_s, limits=None, why=None)
        if in_use.policy == PolicyInForce():
            return replace(unknown, why="no policy is in force; an operator must run slurm-gpu policy apply")
        try:
            uid = self._uid_of(user)
        except (KeyError, ValueError):
            return replace(unknown, why=f"user {user} does not exist on slurm-gpuctld's host")
        places, now_s = self._places_of(user), self._clock.wall()
        lines = quota_of(in_use.policy, in_use.snapshot, user, uid, places, now_s, by_rule)
        return replace(unknown, limits=[line.to_json() for line in lines], uid=uid)

    def _places_of(self, user: str) -> UserAssociations:
        now = self._clock.monotonic()
        until, places = self._places.get(user, (0.0, None))
        if places is None or now >= until:
            places = self._ask_places(user)
            self._places = {name: item for name, item in self._places.items() if item[0] > now}
            if places.from_slurmdbd:
                self._places[user] = now + _PLACES_KEPT_S, places
        return places
