"""Watch jobs, send notices and end idle jobs on the host of the active slurmctld.

Requests to slurm-gpudbd and deliveries run in the background, one at a time. Nothing else changes the ledger
during a delivery.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu.alerts.alert import Alert
from slurm_gpu.alerts.watch import Watch
from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.notices import status
from slurm_gpu.controller.notices.cancellations import Cancellations
from slurm_gpu.controller.notices.judging import Judgment, judge, message, outlook
from slurm_gpu.controller.notices.poll import ClusterPoll, rules_of, watch
from slurm_gpu.controller.notices.status import Status
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.finding import WARNING, NoticedRun
from slurm_gpu.notices.ledger import Delivery, Ledger, Notice
from slurm_gpu.notices.outbox import due, send_all
from slurm_gpu.notices.sending import Channel, Message
from slurm_gpu.notices.settings import Settings, load_settings
from slurm_gpu.notices.texts import NoticeContext, load_templates
from slurm_gpu.policy.lua.installed import CancelIdleInForce
from slurm_gpu.slurm.client import SlurmClient, SlurmSettings
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.wire.answers.cluster import ClusterJob

log = logging.getLogger("slurm-gpuctld")

# Poll interval: nodes with jobs send values every 10 s for slurm-gpuctld, and a value covers 30 s.
POLL_EVERY_S = 15.0
# Jobs are ended only if the poll is at most this old.
_STALE_S = 60.0


def channels_of(settings: Settings) -> dict[str, Channel]:
    """Return the channels that notices.yaml names."""
    # Import the modules here, because SMTP and TLS need memory that sites without notices can save.
    from slurm_gpu.notices.mail import MailChannel
    from slurm_gpu.notices.webhook import WebhookChannel

    found: dict[str, Channel] = {}
    if settings.mail is not None:
        found["mail"] = MailChannel(settings.mail)
    if settings.webhook is not None:
        found["webhook"] = WebhookChannel(settings.webhook)
    return found


def ledger_path(settings: SlurmSettings) -> Path:
    """Return the path of the ledger, which all slurmctld hosts share."""
    state = Path(settings.raw.get("StateSaveLocation", "/var/spool/slurmctld"))
    return state / "slurm-gpu" / ledgers.FILE_NAME


class NoticeController(Duty):
    """Polls slurm-gpudbd and sends notices in the background; ends idle jobs."""

    def __init__(
        self,
        config: SiteConfig,
        settings_path: Path,
        client: SlurmClient,
        cancellations: Cancellations,
        poll: Callable[[], ClusterPoll],
        background: Background,
        run_directory: Path,
        clock: Clock,
        channels: Callable[[Settings], Mapping[str, Channel]] = channels_of,
    ) -> None:
        super().__init__(
            clock, "no notices are sent and no idle jobs are ended: %s", "notices are sent again"
        )
        self._config, self._settings_path, self._client = config, settings_path, client
        self._cancellations, self._poll = cancellations, poll
        self._path, self._channels = run_directory / status.FILE_NAME, channels
        self._zone = ZoneInfo(config.timezone)
        self._watch = Watch(rules_of(config))
        self._settings: Settings | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._slurm: SlurmSettings | None = None
        self._ledger: Ledger | None = None
        self._polling = BackgroundTask[ClusterPoll](background)
        self._sending = BackgroundTask[None](background)
        self._next_s = 0.0

    def prepare(self, view: QueueView) -> bool:
        """Start polls of slurm-gpudbd; return whether a poll has finished and nothing is being sent."""
        if not view.answered:
            return False
        if self._sending.is_done:
            self._sending.take()
        if not self._sending.is_free:
            return False
        if self._current_settings() is None or not view.in_charge:
            self._rest()
            return False
        if self._polling.is_free and self._clock.monotonic() >= self._next_s:
            self._next_s = self._clock.monotonic() + POLL_EVERY_S
            self._polling.start(self._poll)
            return False
        return self._polling.is_done

    def work(self, view: QueueView) -> None:
        """Act on the responses of slurm-gpudbd."""
        assert self._settings is not None
        self._act(self._polling.take(), view.jobs, self._settings, view.policy.cancel_idle)

    def _rest(self) -> None:
        """Drop all state, because the next active slurm-gpuctld reads the ledger and observes jobs itself."""
        if self._ledger is not None:
            self._ledger, self._watch = None, Watch(rules_of(self._config))
            self._path.unlink(missing_ok=True)

    def _current_settings(self) -> Settings | None:
        """Return the current settings of notices.yaml; raise InvalidFileError once if they are invalid."""
        try:
            found = self._settings_path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            self._stamp = self._settings = None
            return None
        if stamp != self._stamp:
            self._stamp, self._settings = stamp, None
            self._settings = load_settings(self._settings_path)
            log.info(
                "notices: %s, read from %s",
                "off" if self._settings is None else self._settings.mode,
                self._settings_path,
            )
        return self._settings

    def _act(
        self,
        poll: ClusterPoll,
        jobs: Sequence[CountedJob],
        settings: Settings,
        rule: CancelIdleInForce | None,
    ) -> None:
        ledger, now_s = self._read(), self._clock.wall()
        running = {
            NoticedRun(job.job_id, job.start_s): job
            for job in jobs
            if job.phase is JobPhase.RUNNING and job.start_s is not None
        }
        alerts: Sequence[Alert] = watch(self._watch, poll)
        self._cancellations.settle(ledger, running)
        ledger.take_back(poll.suspended, WARNING)  # a suspended job cannot use its GPUs
        ledger.prune(running, now_s)

        def binds(job: ClusterJob) -> bool:
            counted = None if job.start_s is None else running.get(NoticedRun(job.job_id, job.start_s))
            return (
                counted is not None
                and rule is not None
                and rule.binds(counted.uid, counted.account, counted.qos, counted.partition, now_s)
            )

        judged = judge(poll, alerts, settings, rule, binds, ledger, now_s)
        if settings.sends and abs(now_s - poll.at_s) <= _STALE_S:
            for standing in judged.may_end():
                if rule is not None and self._cancellations.may_try(ledger, standing.finding.job.run, now_s):
                    self._cancellations.end(ledger, standing, rule, self._save)
        ids = {one.finding.job.run: one.finding.job.id for one in judged.outcomes}
        if self._cancellations.audit(ledger, rule, ids):
            self._save()
        self._write_status(judged, settings)
        if settings.sends:
            self._send(judged, settings)

    def _send(self, judged: Judgment, settings: Settings) -> None:
        ledger, now_s = self._read(), judged.now_s
        chosen = due(ledger, now_s)
        if not judged.drafts and not chosen:
            return
        templates = load_templates(settings.templates)
        around = NoticeContext(
            cluster=self._config.cluster, zone=self._zone, contact=settings.contact, web=self._config.web
        )
        for draft in judged.drafts:
            ledger.notices.append(
                Notice(
                    id=uuid.uuid4().hex,
                    user=draft.user,
                    kind=draft.kind,
                    stage=draft.stage,
                    runs={one.job.run: one.since_s for one in draft.findings},
                    created_s=now_s,
                    deliveries={channel: Delivery() for channel in draft.channels},
                )
            )
        self._save()
        chosen = due(ledger, now_s)
        messages: dict[str, Message] = {}
        for notice in {notice.id: notice for notice, _, _ in chosen}.values():
            about = [one for one in judged.about(notice.kind, notice.stage) if one.job.run in notice.runs]
            if about:
                messages[notice.id] = message(
                    notice.id, notice.user, notice.kind, about, judged, templates, around
                )
        channels, wall = self._channels(settings), self._clock.wall
        self._sending.start(lambda: send_all(chosen, messages, channels, self._save, wall))

    def _read(self) -> Ledger:
        if self._ledger is None:
            self._slurm = self._client.settings()
            found = ledgers.read(ledger_path(self._slurm))
            for notice in ledgers.after_a_kill(found):
                log.warning(
                    "notice may have been sent before slurm-gpuctld ended: %s to %s", notice.kind, notice.user
                )
            self._ledger = found
        return self._ledger

    def _save(self) -> None:
        assert self._ledger is not None
        assert self._slurm is not None
        ledgers.write(ledger_path(self._slurm), self._ledger, self._slurm.slurm_user_uid)

    def _write_status(self, judged: Judgment, settings: Settings) -> None:
        assert self._slurm is not None
        current = Status(
            as_of_s=judged.now_s,
            mode=settings.mode,
            cancels=None if judged.rule is None else judged.rule.mode,
            outlook=outlook(judged, settings, self._zone),
        )
        status.write(self._path, current, self._slurm.slurm_user_uid)
