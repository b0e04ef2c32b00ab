"""Call slurm-gpudbd's API over its Unix socket on the same host, or over TCP with MUNGE from other hosts."""

from __future__ import annotations

import math
import random
import re
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from slurm_gpu import munge
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import DatabaseError, NotAllowedError, NotFoundError, UsageError
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.codec import decode, from_json
from slurm_gpu.wire.answers.forecast import Forecast
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.quota import Quota
from slurm_gpu.wire.answers.reservation import Report, Reservation
from slurm_gpu.wire.answers.running import Running
from slurm_gpu.wire.answers.runs import (
    AuditEvent,
    Decision,
    DeviceTimeline,
    Health,
    NodeReport,
    NodeWindow,
    Run,
    RunPage,
    RunTimeline,
)
from slurm_gpu.wire.answers.usage import ClusterUsage
from slurm_gpu.wire.answers.verdicts import Verdicts
from slurm_gpu.wire.headers import READS_ALL, READS_HEADER
from slurm_gpu.wire.live import Refresh

__all__ = [
    "AuditEvent",
    "DatabaseClient",
    "Decision",
    "DeviceTimeline",
    "Forecast",
    "Health",
    "MungeAuth",
    "NodeReport",
    "NodeWindow",
    "Quota",
    "Report",
    "Reservation",
    "Run",
    "RunPage",
    "RunTimeline",
    "Running",
    "Verdicts",
]

T = TypeVar("T")

_TIMEOUT_S = 30.0
_JOB = re.compile(r"[0-9]{1,18}(?:[_+][0-9]{1,18})?")
_PROBE_S = 1.0
_RETRY_JITTER_S = 0.5
_SECONDS = re.compile(r"[0-9]{1,9}")


class _LiveNodes(msgspec.Struct):
    nodes: dict[str, Live]


class _Forecast(msgspec.Struct):
    forecast: Forecast | None
    why: str | None = None


class _Reserved(msgspec.Struct):
    reservation: Reservation


class _Stored(msgspec.Struct):
    lacks: Sequence[str] = ()


class MungeAuth(httpx.Auth):
    """Signs each request with a fresh credential over its method, target and body."""

    requires_request_body = True

    def __init__(self, munge_socket: str | None = None) -> None:
        self._munge_socket = munge_socket

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the Authorization header."""
        target = request.url.raw_path.decode("ascii")
        digest = munge.request_digest(request.method, target, request.content)
        request.headers["Authorization"] = f"MUNGE {munge.encode(digest, self._munge_socket)}"
        yield request


class DatabaseClient:
    """A client of slurm-gpudbd with the rights of the calling user; a context manager.

    Every method raises DatabaseError if slurm-gpudbd is unreachable or rejects the request, MungeError if no
    credential is available, and UsageError if the request is invalid.
    """

    def __init__(
        self,
        config: SiteConfig,
        timeout_s: float = _TIMEOUT_S,
        *,
        needs_all: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Configure access.

        `timeout_s` limits the duration of a request, including the waits for the user's rate limit (429). If
        `needs_all` is true and the caller may not see every run, requests fail with an error that describes
        the remedy.
        """
        self._timeout_s, self._sleep = timeout_s, sleep
        path = config.database_socket
        self._headers = {READS_HEADER: READS_ALL} if needs_all else {}
        if _connectable(path):
            self.where = str(path)
            # A Unix socket needs no certificate authorities, and loading them takes ten times as long as a
            # request.
            transport = httpx.HTTPTransport(uds=str(path), verify=False)
            self._http = httpx.Client(transport=transport, base_url="http://slurm-gpudbd", timeout=timeout_s)
        else:
            self.where = config.database
            # A proxy would change the address that slurm-gpudbd sees.
            self._http = httpx.Client(
                base_url=config.database,
                auth=MungeAuth(config.munge_socket),
                timeout=timeout_s,
                trust_env=False,
                verify=config.database.startswith("https:"),
            )

    def health(self) -> Health:
        """Return the versions and the progress of importing Slurm's accounting."""
        return self._get(Health, "/v1/health")

    def runs(
        self,
        *,
        user: str | None = None,
        accounts: Sequence[str] = (),
        states: Sequence[str] = (),
        qos: str | None = None,
        partition: str | None = None,
        app: str | None = None,
        gpu_type: str | None = None,
        server_type: str | None = None,
        zone: str | None = None,
        min_gpus: float | None = None,
        since_s: int | None = None,
        until_s: int | None = None,
        ended: bool = False,
        sort: str | None = None,
        ascending: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> RunPage:
        """Return one page of runs, the last submitted first unless `sort` is given.

        Pass RunPage.cursor as `cursor` to get the next page. docs/api.md explains each filter.
        """
        values = {
            "user": user,
            "account": ",".join(accounts) or None,
            "state": ",".join(states) or None,
            "qos": qos,
            "partition": partition,
            "app": app,
            "gpu_type": gpu_type,
            "server_type": server_type,
            "zone": zone,
            "min_gpus": min_gpus,
            "sort": sort,
            "order": "asc" if ascending else None,
            "since": since_s,
            "until": until_s,
            "ended": "true" if ended else None,
            "limit": limit,
            "cursor": cursor,
        }
        query = {name: str(value) for name, value in values.items() if value is not None}
        return self._get(RunPage, "/v1/runs", query)

    def all_runs(self, **filters: Any) -> Iterator[Run]:
        """Yield every run that matches `filters`, which are the filters of `runs`."""
        cursor: str | None = None
        while True:
            page = self.runs(**{**filters, "cursor": cursor})
            yield from page.runs
            if page.cursor is None:
                return
            cursor = page.cursor

    def run(self, job: str) -> Sequence[Run]:
        """Return only the runs of `run_page`."""
        return self.run_page(job).runs

    def run_page(self, job: str) -> RunPage:
        """Return the runs of JOBID, JOBID_TASK or JOBID+OFFSET and their devices, newest first."""
        missing: dict[str, Any] = {}
        answer = self._get(dict[str, Any], _job_path(job), missing=missing)
        return RunPage(runs=(), cursor=None) if answer is missing else RunPage.from_json(answer)

    def timelines(self, job: str) -> Sequence[RunTimeline]:
        """Return the timelines of every run of `job`, newest first; () if the job is unknown."""
        return self._list(tuple[RunTimeline, ...], "runs", _job_path(job, "/timeline"), or_none=True)

    def windows(self, job: str) -> Sequence[NodeWindow]:
        """Return the last ten minutes of `job` at full resolution.

        The result is () if the windows have just been requested from the nodes; repeat the call in 10 s.
        Raise DatabaseError if the job is not running and no window is stored.
        """
        return self._list(tuple[NodeWindow, ...], "windows", _job_path(job, "/window"))

    def hosts(self, job: str) -> Sequence[NodeMinutes]:
        """Return host metrics of the part of the last ten minutes in which the job did not share its nodes.

        The result is () if the job is not running, shares a node, or is unknown, or if slurm-gpudbd is too
        old to support this request.
        """
        return self._list(tuple[NodeMinutes, ...], "hosts", _job_path(job, "/hosts"), or_none=True)

    def live(self, refresh: Refresh = "all") -> Mapping[str, Live]:
        """Return the live values and the jobs of all devices, by node.

        `refresh` selects the nodes that post every 10 s because of this request; the other nodes post every
        60 s.
        """
        return self._get(_LiveNodes, "/v1/live", {"refresh": refresh}).nodes

    def nodes(self) -> Sequence[NodeReport]:
        """Return the nodes with slurm-gpud, their devices, and the times of their last shipments."""
        return self._list(tuple[NodeReport, ...], "nodes", "/v1/nodes")

    def cluster(self) -> ClusterState:
        """Return all nodes, the jobs on them and the pending jobs, as last reported by slurmctld."""
        return self._get(ClusterState, "/v1/cluster")

    def usage(self, days: int) -> ClusterUsage:
        """Return the cluster's GPUs over the last 1, 7 or 30 days; utilisation only for operators."""
        return self._get(ClusterUsage, "/v1/usage", {"days": str(days)})

    def running(self) -> Running:
        """Return the GPU use of the caller's running jobs or, for operators, of all running jobs."""
        return self._get(Running, "/v1/running")

    def verdicts(self) -> Verdicts:
        """Return the current verdicts on the caller's running jobs or, for operators, on all running jobs."""
        return self._get(Verdicts, "/v1/verdicts")

    def forecast(self, job: str) -> Forecast | str:
        """Return the forecast of a pending job's waiting time, or the reason why there is none.

        Raise UsageError if the job is not pending.
        """
        return self._forecast(_job_path(job, of="forecast"), {})

    def forecast_asked(self, **asked: str | float | None) -> Forecast | str:
        """Return the forecast of a job that has not been submitted; docs/api.md lists the parameters."""
        query = {name: str(value) for name, value in asked.items() if value is not None}
        return self._forecast("/v1/forecast", query)

    def acts(self, limit: int = 100) -> Sequence[AuditEvent]:
        """Return the latest audit events, newest first; only operators may call this."""
        return self._list(tuple[AuditEvent, ...], "audit", "/v1/audit", {"limit": str(limit)})

    def send_audit_events(self, acts: Sequence[AuditEvent]) -> None:
        """Store audit events; only root and SlurmUser may call this.

        A repeated call has no effect.
        """
        self._post_controller(audit=acts)

    def reservations(self, past: int = 0, ids: Sequence[int] = ()) -> Sequence[Reservation]:
        """Return open reservations, the last `past` ended reservations, and those in `ids`, sorted by ID."""
        query = {"past": str(past), "ids": ",".join(map(str, ids))}
        return self._list(tuple[Reservation, ...], "reservations", "/v1/reservations", query)

    def request_reservation(self, **asked: str | int | None) -> Reservation:
        """Request a reservation; docs/api.md lists the fields."""
        return self._reserve("", asked)

    def decide_reservation(self, number: int, act: str, **more: str | int | None) -> Reservation:
        """Approve a reservation (with start_s, end_s and nodes), or deny or cancel it (with why)."""
        return self._reserve(f"/{number}", {"act": act, **more})

    def send_reservation_reports(self, reports: Sequence[Report]) -> None:
        """Report the states of reservations; only root and SlurmUser may call this.

        A repeated call is harmless.
        """
        self._post_controller(reservations=reports)

    def _reserve(self, path: str, asked: Mapping[str, str | int | None]) -> Reservation:
        said = {name: value for name, value in asked.items() if value is not None}
        content = msgspec.json.encode(said)
        return self._ask(_Reserved, "POST", f"/v1/reservations{path}", content=content).reservation

    def decisions(self, token: str) -> Sequence[Decision]:
        """Return the decisions with this token; () if the token is unknown or expired."""
        path = f"/v1/decisions/{quote(token, safe='')}"
        return self._list(tuple[Decision, ...], "decisions", path, or_none=True)

    def refusals(self, rule: str | None = None, limit: int = 100) -> Sequence[Decision]:
        """Return the latest refusals, or only those by `rule`, newest first; only operators may call this."""
        query = {"limit": str(limit), **({} if rule is None else {"rule": rule})}
        return self._list(tuple[Decision, ...], "decisions", "/v1/decisions", query)

    def send_decisions(self, decisions: Sequence[Decision], after: str | None = None) -> bool:
        """Store decisions; only root and SlurmUser may call this.

        A repeated call has no effect. Return True if the decision with the ID `after`, which was sent before
        these decisions, is missing in the database.
        """
        return "decisions" in self._post_controller(decisions=decisions, decisions_after=after).lacks

    def quota(self, user: str) -> Quota:
        """Return a user's limits with usage if slurm-gpuctld has sent them; otherwise, request them.

        Operators may call this for any user.
        """
        return self._get(Quota, f"/v1/quota/{quote(user, safe='')}")

    def quotas_wanted(self) -> Sequence[str]:
        """Return the users whose limits were requested; only root and SlurmUser may call this."""
        return self._list(tuple[str, ...], "wanted", "/v1/quota")

    def send_quotas(self, quotas: Sequence[Quota]) -> None:
        """Report limits of users; only root and SlurmUser may call this."""
        self._post_controller(quotas=quotas)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post_controller(self, **values: Any) -> _Stored:
        return self._ask(_Stored, "POST", "/v1/controller", content=msgspec.json.encode(values))

    def _forecast(self, path: str, query: Mapping[str, str]) -> Forecast | str:
        found = self._get(_Forecast, path, query)
        return str(found.why) if found.forecast is None else found.forecast

    def _list(
        self,
        kind: type[T],
        name: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        or_none: bool = False,
    ) -> T:
        """Return the list `name` of an answer; with `or_none`, return an empty list for status 404."""
        answer = self._get(dict[str, Any], path, query, {name: []} if or_none else None)
        return from_json(kind, answer.get(name))

    def _get(
        self, kind: type[T], path: str, query: Mapping[str, str] | None = None, missing: T | None = None
    ) -> T:
        return self._ask(kind, "GET", path, missing, params=query)

    def _ask(self, kind: type[T], method: str, path: str, missing: T | None = None, **request: Any) -> T:
        response, left_s = self._response(method, path, **request), self._timeout_s
        while response.status_code == 429 and (after_s := _retry_after_s(response)) <= left_s:
            # The random part prevents clients that were rejected together from retrying together.
            wait_s = after_s + random.random() * _RETRY_JITTER_S
            self._sleep(wait_s)
            left_s -= wait_s
            response = self._response(method, path, **request)
        try:
            if response.is_success:
                return decode(kind, response.content)
            value = response.json()
        except ValueError as error:
            raise DatabaseError(
                f"{self.where} answered {response.status_code}, but not in JSON; is it slurm-gpudbd?"
            ) from error
        if response.status_code == 404 and missing is not None:
            return missing
        why = value.get("error") if isinstance(value, dict) else None
        if response.status_code == 400:
            raise UsageError(str(why))
        if response.status_code == 403:
            raise NotAllowedError(f"not allowed: {why} (reported by slurm-gpudbd at {self.where})")
        if response.status_code == 429:
            raise DatabaseError(
                f"slurm-gpudbd at {self.where} temporarily rejects requests of this user: {why}"
            )
        if (retry_after_s := response.headers.get("retry-after")) is not None:
            # The cause comes last, because `slurm-gpu doctor` uses it to name the daemon to start.
            raise DatabaseError(
                f"slurm-gpudbd at {self.where} cannot answer at the moment; try again in {retry_after_s} s, "
                f"and if this persists, run slurm-gpu doctor: {why}"
            )
        failure = NotFoundError if response.status_code == 404 else DatabaseError
        raise failure(f"slurm-gpudbd at {self.where} answered {response.status_code}: {why}")

    def _response(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, headers=self._headers, **request)
        except httpx.TimeoutException as error:
            raise DatabaseError(f"slurm-gpudbd at {self.where} did not answer in time") from error
        except httpx.HTTPError as error:
            raise DatabaseError(f"slurm-gpudbd at {self.where} cannot be reached: {error}") from error


def _retry_after_s(response: httpx.Response) -> float:
    """Return the seconds in the header Retry-After, or infinity if it does not contain seconds."""
    text = response.headers.get("retry-after", "")
    return int(text) if _SECONDS.fullmatch(text) else math.inf


def _job_path(job: str, part: str = "", of: str = "runs") -> str:
    if not _JOB.fullmatch(job):
        raise UsageError(f"{job[:100]!r} is not a job; write JOBID, JOBID_TASK or JOBID+OFFSET")
    return f"/v1/{of}/{job}{part}"


def _connectable(path: Path) -> bool:
    """Return whether a daemon listens on the socket; a killed daemon leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
