"""Telling slurm-gpudbd what was done to the cluster, beside the watcher: it may be away for long."""

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
from slurm_gpu.wire.answers.runs import AuditEvent

log = logging.getLogger("slurm-gpuctld")

FILE_NAME = "acts.json"
"""In the run directory: acts that slurm-gpudbd has not been told of yet."""
_RETRY_S = 60.0
_KEPT = 1000
"""AuditReporter that wait to be told, at most."""
_AT_ONCE = 100
"""As many as slurm-gpudbd takes."""
_LONGEST_NAME, _LONGEST_TEXT = 255, 10_000
"""Characters that slurm-gpudbd takes."""
_AT_THE_END_S = 5.0

Send = Callable[[list[AuditEvent]], None]


class AuditReporter(Duty):
    """A queue of acts. With `path` they outlive this process, however it ends, until they are reported."""

    def __init__(self, clock: Clock, send: Send, path: Path | None = None) -> None:
        super().__init__(
            clock,
            "audit events could not be sent to slurm-gpudbd: %s; retrying",
            "slurm-gpudbd has all audit events",
            every_s=_RETRY_S,
            background=in_background,
        )
        self._send, self._path = send, path
        self._lock = threading.Lock()
        """Of `_waiting`, and of the file."""
        self._waiting: list[AuditEvent] = [] if path is None else _read(path)
        self._unwritten = OutageLog(
            log,
            "%s; audit events that were not sent are lost if slurm-gpuctld is killed",
            clock,
            over="audit events that were not sent are written again",
        )

    def add(
        self,
        act: str,
        subject: str,
        why: str,
        old: str,
        new: str,
        evidence: Any = None,
        act_id: str | None = None,
    ) -> None:
        """Log an act, and tell it as soon as may be; one with the `act_id` of another is the same."""
        log.info("%s: %s (%s)", act, subject, why)
        made = AuditEvent(
            id=uuid.uuid4().hex if act_id is None else act_id,
            at_s=int(self._clock.wall()),
            host=this_host(),
            act=act,
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
                log.warning("slurm-gpudbd is not told any more of: %s: %s", lost.act, lost.subject)
            self._write()
        self._due_s = 0.0

    def close(self) -> None:
        """Report what waits, for a few seconds at most."""
        self._due_s = 0.0
        self.run(QueueView())
        if self._background is not None:
            self._background.wait(_AT_THE_END_S)
        if self._waiting:
            later = "" if self._path is None else "; the next slurm-gpuctld on this host tells it"
            log.warning("slurm-gpudbd was not told of %d acts%s", len(self._waiting), later)

    def prepare(self, view: QueueView) -> bool:
        """Return whether acts wait; those of a host that is not in charge are reported too."""
        return bool(self._waiting)

    def work(self, view: QueueView) -> None:
        """Report all acts that wait."""
        while self._waiting:
            acts = self._waiting[:_AT_ONCE]
            self._send_all(acts)
            with self._lock:
                told = {act.id for act in acts}
                self._waiting = [act for act in self._waiting if act.id not in told]
                self._write()

    def _send_all(self, acts: list[AuditEvent]) -> None:
        """One that is refused for what it says keeps no other from being told."""
        try:
            self._send(acts)
        except UsageError as error:
            if len(acts) > 1:
                for act in acts:
                    self._send_all([act])
            else:
                log.warning(
                    "slurm-gpudbd does not take an act: %s: %s: %s", acts[0].act, acts[0].subject, error
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
    """What an earlier process left; nothing where it left none, or what it left is damaged."""
    try:
        return decode(list[AuditEvent], path.read_bytes())
    except (OSError, ValueError, RecursionError, SlurmGpuError):
        return []


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
