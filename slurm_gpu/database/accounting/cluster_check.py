"""Check that slurmctld and slurmdbd use the configured cluster name; otherwise, no run has records."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.errors import SlurmError

log = logging.getLogger(__name__)

ASK_EVERY_S = 3600.0


class ClusterCheck:
    """Checks the cluster name; call `check()` in each import pass."""

    def __init__(
        self, cluster: str, view: SlurmView, clock: Clock, known: Callable[[], Collection[str]]
    ) -> None:
        """Create the check; `known` returns the names of the clusters in slurmdbd."""
        self._cluster, self._view, self._clock, self._known = cluster, view, clock, known
        self._next_s = -math.inf
        self._clusters: Collection[str] | None = None
        self._wrong = OutageLog(
            log, "import: %s", clock, over=f"import: slurmctld and slurmdbd now have the cluster {cluster}"
        )

    def check(self, *, has_runs: bool) -> None:
        """Log a wrong cluster name once; query slurmdbd every hour while there are no runs."""
        reason = self._of_slurmctld() or (None if has_runs else self._of_slurmdbd())
        if reason is None:
            self._wrong.worked()
        else:
            self._wrong.failed(reason)

    def _of_slurmctld(self) -> str | None:
        settings = self._view.settings()
        if settings is None or settings.cluster == self._cluster:
            return None
        named = settings.cluster
        return (
            f"slurm-gpu.yaml has cluster: {self._cluster}, but slurmctld's ClusterName is {named}, so no "
            f"run has records: write cluster: {named} into slurm-gpu.yaml here and on the nodes"
        )

    def _of_slurmdbd(self) -> str | None:
        now_s = self._clock.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + ASK_EVERY_S
            try:
                self._clusters = self._known()
            except SlurmError as error:
                log.debug("cannot list the clusters in slurmdbd: %s", error)
        if self._clusters is None or self._cluster in self._clusters:
            return None
        named = ", ".join(sorted(self._clusters)) or "none"
        return (
            f"slurmdbd has no cluster {self._cluster} (sacctmgr show cluster: {named}), so there are no "
            "runs: check AccountingStorageHost and ClusterName in slurm.conf"
        )
