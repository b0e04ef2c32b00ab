"""Select jobs and rows of GPUs by user, account and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_gpu.monitor.cluster.summary import GpuRow
from slurm_gpu.wire.answers.cluster import ClusterJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The jobs of `user` and `account` whose texts contain each of `words`, in upper or lower case."""

    user: str | None = None
    account: str | None = None
    words: Sequence[str] = ()

    def admits_row(self, row: GpuRow) -> bool:
        """Return whether the row is selected; GPUs without a job belong to no user and account."""
        texts = [*row.nodes, row.state, row.gpu_type, row.reason or ""]
        if row.job is not None:
            return self._admits_owner(row.job) and self._has_words([*texts, *_texts(row.job)])
        texts.append("free" if row.n_free else "")
        return self.user is None and self.account is None and self._has_words(texts)

    def admits_job(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return whether the job, which has these nodes, is selected."""
        return self._admits_owner(job) and self._has_words([*_texts(job), *nodes])

    def _admits_owner(self, job: ClusterJob) -> bool:
        return self.user in (None, job.user) and self.account in (None, job.account)

    def _has_words(self, texts: Iterable[str]) -> bool:
        if not self.words:
            return True
        # No word contains a space.
        text = " ".join(texts).lower()
        return all(word.lower() in text for word in self.words)


def _texts(job: ClusterJob) -> list[str]:
    reason = job.reason if job.state == "PENDING" else ""
    return [job.id, job.name or "", job.user, job.account, job.partition, job.qos, job.state, reason]
