"""A mark outside the spool: an empty spool is that of a new node, or one whose records are lost."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)


def is_lost(spool: Path, mark: Path, *, is_new: bool) -> bool:
    """Return whether a spool that is new was here before, and log it.

    Where the mark is lost with the spool, as with the whole disk, nothing shows that there was one.
    """
    was_here = mark.exists()
    if is_new and was_here:
        log.error("%s: is missing or empty, and was not before: records that were not sent are lost", spool)
    elif is_new:
        log.info("%s: is new", spool)
    return is_new and was_here


def leave_mark(mark: Path) -> None:
    """Note that a spool is here; only once it is on disk, or a start that is killed would report a loss."""
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch(0o600)
    except OSError as error:
        log.warning("%s: %s; a spool that is lost later will not be noticed", mark, error.strerror)
