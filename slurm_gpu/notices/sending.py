"""What a channel is: it takes a notice, or says whether another attempt makes sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slurm_gpu.errors import OutsideError
from slurm_gpu.notices.texts import Text

TIMEOUT_S = 10.0


class NotSentError(OutsideError):
    """It surely did not go out."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good
        """Whether it would not the next time either."""


class UnknownFateError(OutsideError):
    """It may have gone out or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notice as channels send it."""

    id: str
    at_s: float
    cluster: str
    user: str
    kind: str
    jobs: tuple[str, ...]
    """Ids, as users know them."""
    text: Text


class Channel(Protocol):
    """Mail, a webhook, or a test's."""

    def send(self, message: Message) -> None:
        """Hand it over; raises NotSentError or UnknownFateError."""
