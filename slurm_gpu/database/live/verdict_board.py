"""Keep the current verdicts: the thread of the watch writes them, and requests read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.http.identity import Caller
from slurm_gpu.wire.answers.verdicts import JobVerdict, ReportedSuspect, Verdicts


@dataclass(frozen=True, slots=True)
class ShownVerdicts:
    """The verdicts of one scan, each with the uid of the job's user."""

    as_of_s: float | None = None
    watched: int = 0
    verdicts: Sequence[tuple[int, JobVerdict]] = ()
    suspects: Sequence[ReportedSuspect] = ()

    def seen_by(self, caller: Caller) -> Verdicts:
        """Return the verdicts on the caller's own jobs or, for operators, all verdicts and the suspects."""
        return Verdicts(
            as_of_s=self.as_of_s,
            watched=self.watched,
            verdicts=[item for uid, item in self.verdicts if caller.may_see(uid)],
            suspects=self.suspects if caller.sees_all else (),
        )


class VerdictBoard:
    """Stores the verdicts of the last scan."""

    def __init__(self) -> None:
        self.shown = ShownVerdicts()
