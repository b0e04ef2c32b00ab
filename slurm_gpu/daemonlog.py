"""What the daemons log: to standard error, for journald or for somebody who looks on."""

from __future__ import annotations

import logging

# syslog(3): 3 error, 4 warning, 6 informational, 7 debug.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 3}


class JournalFormatter(logging.Formatter):
    """`<priority>message`, as journald reads it (sd-daemon(3)); it adds the time itself."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; further lines carry the priority too."""
        priority = _PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


def log_to_stderr(*, for_people: bool, line: str = "%(name)s: %(message)s") -> None:
    """From INFO on; `line` is in logging's own notation, and people see the time and the level before it."""
    handler = logging.StreamHandler()
    plain = logging.Formatter(f"%(asctime)s %(levelname)s {line}")
    handler.setFormatter(plain if for_people else JournalFormatter(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # It tells each request, which whoever asked tells in words of its own where it matters.
    logging.getLogger("httpx").setLevel(logging.WARNING)
