"""Report audit events to slurm-gpudbd in the background, even after a long outage of slurm-gpudbd."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.controller.background import in_background
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.run_file import write_run_file
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError, SlurmGpuError, UsageError
from slurm_gpu.policy.lua.peers import this_host
from slurm_gpu.wire.answers.codec import decode, to_json
from slurm_gpu.wire.answers.runs import AuditEvent, with_current_keys

log = logging.getLogger("slurm-gpuctld")

# The file in the run directory with the events that slurm-gpudbd has not received yet.
FILE_NAME = "acts.json"
_RETRY_S = 60.0
# Maximum number of unsent events.
_KEPT = 1000
# Maximum number of events that slurm-gpudbd accepts at once.
_AT_ONCE = 100
# Maximum lengths that slurm-gpudbd accepts, in characters.
_LONGEST_NAME, _LONGEST_TEXT = 255, 10_000
_AT_THE_END_S = 5.0

Send = Callable[[list[AuditEvent]], None]


class AuditReporter(Duty):
    """A queue of audit events; with `path`, unsent events survive the exit or a crash of the process."""

    def __init__(self, clock: Clock, send: Send, path: Path | None = None) -> None:
        super().__init__(
            clock,
            "audit events are not sent to slurm-gpudbd: %s; retrying",
            "slurm-gpudbd has all audit events",
            every_s=_RETRY_S,
            background=in_background,
        )
        self._send, self._path = send, path
        self._lock = threading.Lock()
        """Protects `_waiting` and the file."""
        self._waiting: list[AuditEvent] = [] if path is None else _read(path)
        self._unwritten = OutageLog(
            log,
            "unsent audit events could not be saved: %s; they are lost if slurm-gpuctld is killed",
            clock,
            over="unsent audit events are saved again",
        )

    def add(
        self,
        action: str,
        subject: str,
        why: str,
        old: str,
        new: str,
        evidence: Any = None,
        act_id: str | None = None,
    ) -> None:
        """Log an event and report it as soon as possible; events with the same `act_id` count once."""
        log.info("%s: %s (%s)", action, subject, why)
        made = AuditEvent(
            id=uuid.uuid4().hex if act_id is None else act_id,
            at_s=int(self._clock.wall()),
            host=this_host(),
            action=action,
            subject=_short(subject, _LONGEST_NAME),
            why=_short(why, _LONGEST_TEXT),
            old=_short(old, _LONGEST_TEXT),
            new=_short(new, _LONGEST_TEXT),
            evidence=evidence,
        )
        with self._lock:
            self._waiting.append(made)
            if len(self._waiting) > _KEPT:
                lost = self._waiting.pop(0)
                log.warning(
                    "audit event dropped because too many are unsent: %s: %s", lost.action, lost.subject
                )
            self._write()
        self._due_s = 0.0

    def close(self) -> None:
        """Report unsent events; wait at most a few seconds."""
        self._due_s = 0.0
        self.run(QueueView())
        if self._background is not None:
            self._background.wait(_AT_THE_END_S)
        if self._waiting:
            later = "" if self._path is None else "; the next slurm-gpuctld on this host sends them"
            log.warning("%d audit events were not sent to slurm-gpudbd%s", len(self._waiting), later)

    def prepare(self, view: QueueView) -> bool:
        """Return whether there are unsent events, even on a host whose slurmctld is not active."""
        return bool(self._waiting)

    def work(self, view: QueueView) -> None:
        """Report all unsent events."""
        while self._waiting:
            acts = self._waiting[:_AT_ONCE]
            self._send_all(acts)
            with self._lock:
                sent = {act.id for act in acts}
                self._waiting = [act for act in self._waiting if act.id not in sent]
                self._write()

    def _send_all(self, acts: list[AuditEvent]) -> None:
        """Send events; an event that slurm-gpudbd rejects does not block the others."""
        try:
            self._send(acts)
        except UsageError as error:
            if len(acts) > 1:
                for act in acts:
                    self._send_all([act])
            else:
                log.warning(
                    "slurm-gpudbd rejected an audit event: %s: %s: %s", acts[0].action, acts[0].subject, error
                )

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            write_run_file(self._path, json.dumps(to_json(self._waiting)))
            self._unwritten.worked()
        except OutsideError as error:
            self._unwritten.failed(error)


def _read(path: Path) -> list[AuditEvent]:
    """Return the events that an earlier process did not send; [] if the file is missing or damaged."""
    try:
        return decode(list[AuditEvent], with_current_keys(path.read_bytes()))
    except (OSError, ValueError, RecursionError, SlurmGpuError):
        return []


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
