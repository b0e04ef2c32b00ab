"""Log the daemons' messages to standard error, for journald or a terminal."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

# Maximum number of lines per minute for one logging call.
MOST_WARNINGS = 20
MOST_OTHERS = 200
_PERIOD_S = 60.0
# syslog(3): 3 error, 4 warning, 6 informational, 7 debug.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 3}


class JournalFormatter(logging.Formatter):
    """Formats records as `<priority>message` for journald (sd-daemon(3)), which adds the time itself."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with the priority at the beginning of each of its lines."""
        priority = _PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class LineLimit(logging.Filter):
    """Limits the lines per minute of each logging call in the code, and counts the omitted lines.

    This limit is needed although callers remember which messages they have logged: messages contain values
    from senders, such as uids, addresses and names, which senders can vary.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[tuple[str, int], _LineCount] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line; note in the last line of a minute that more lines are omitted.

        The first line after that minute contains the number of omitted lines. Handlers call this method under
        their lock.
        """
        use = self._uses.setdefault((record.name, record.lineno), _LineCount())
        note = ""
        if not 0 <= record.created - use.since_s < _PERIOD_S:
            if use.n_left_out:
                note = f" (similar lines left out: {use.n_left_out})"
            use.since_s, use.n, use.n_left_out = record.created, 0, 0
        most = MOST_WARNINGS if record.levelno >= logging.WARNING else MOST_OTHERS
        if use.n >= most:
            use.n_left_out += 1
            return False
        use.n += 1
        if use.n == most:
            note += " (similar lines are left out for a minute)"
        if note:
            record.msg, record.args = record.getMessage() + note, None
        return True


@dataclass(slots=True)
class _LineCount:
    """The number of lines of one logging call since `since_s` (wall clock)."""

    since_s: float = -math.inf
    n: int = 0
    n_left_out: int = 0


def log_to_stderr(*, for_people: bool, line: str = "%(name)s: %(message)s") -> None:
    """Log messages from level INFO up in the format `line`; with `for_people`, prepend the time and level."""
    handler = logging.StreamHandler()
    plain = logging.Formatter(f"%(asctime)s %(levelname)s {line}")
    handler.addFilter(LineLimit())
    handler.setFormatter(plain if for_people else JournalFormatter(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # httpx logs every request; callers log failures themselves.
    logging.getLogger("httpx").setLevel(logging.WARNING)
