"""Define the protocol of channels that send notices, and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slurm_gpu.errors import OutsideError
from slurm_gpu.notices.texts import Text

TIMEOUT_S = 10.0


class NotSentError(OutsideError):
    """The notice was certainly not sent."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good
        """Whether another attempt would fail too."""


class UnknownFateError(OutsideError):
    """The notice may have been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notice in the form in which channels send it."""

    id: str
    at_s: float
    cluster: str
    user: str
    kind: str
    jobs: tuple[str, ...]
    """Job IDs as shown to users."""
    text: Text


class Channel(Protocol):
    """A way to send notices: mail or a webhook."""

    def send(self, message: Message) -> None:
        """Send a message; raise NotSentError or UnknownFateError."""
