"""Define the routes of the API with their documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from starlette.types import ASGIApp

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import Clock
from slurm_gpu.monitor import schemas
from slurm_gpu.monitor.cluster import responses, usage
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.usage import UsageListing
from slurm_gpu.monitor.events import Events
from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import CSV, JSON, OCTETS, SVG
from slurm_gpu.monitor.job import ended
from slurm_gpu.monitor.job import pages as jobpages
from slurm_gpu.monitor.job.diagnosis import Diagnoses, DiagnosisSettings, VerdictPage
from slurm_gpu.monitor.job.drawing import DrawingProcess
from slurm_gpu.monitor.job.ended import EndedRunsPage
from slurm_gpu.monitor.job.forecasts import Forecasts
from slurm_gpu.monitor.job.me import Me
from slurm_gpu.monitor.job.pages import JobPage
from slurm_gpu.monitor.job.queued import QueuedJobPage
from slurm_gpu.monitor.listings import Listing, ListingKind, Make
from slurm_gpu.monitor.schemas import Schema
from slurm_gpu.monitor.viewer import ViewerOf


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The objects that routes need."""

    board: Board
    viewer_of: ViewerOf
    connect: Callable[[], DatabaseClient]
    clock: Clock
    slots: RequestSlots = field(default_factory=RequestSlots)
    drawing: DrawingProcess = field(default_factory=DrawingProcess)
    diagnosis_settings: DiagnosisSettings = field(default_factory=DiagnosisSettings)
    links: FooterLinks = field(default_factory=FooterLinks)

    @property
    def diagnoses(self) -> Diagnoses:
        """Return what diagnoses runs."""
        return Diagnoses(self.connect, self.clock.wall, self.slots, self.drawing, self.diagnosis_settings)


@dataclass(frozen=True, slots=True)
class RouteParameter:
    """A parameter of a path or a query."""

    name: str
    meaning: str
    schema: Schema
    in_path: bool = False
    example: str = ""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A path with its application and its documented answers."""

    path: str
    summary: str
    make: Callable[[RouteContext], ASGIApp]
    answers: Sequence[tuple[bytes, Schema]]
    """Pairs of media type and schema."""
    parameters: Sequence[RouteParameter] = ()
    missing: bool = False
    """Whether the requested item may be missing or belong to another user."""


_METRIC = RouteParameter("metric", "one of the layout's metrics", schemas.TEXT, example="util")
_SINCE = RouteParameter(
    "since", "the version of an earlier answer, to receive only later changes", schemas.WHOLE
)
_JOB = RouteParameter("job", "JOBID, JOBID_TASK or JOBID+OFFSET", schemas.TEXT, in_path=True, example="17")
_FORMAT = RouteParameter(
    "format", "json by default, or csv to download a file", {"type": "string", "enum": list(jobpages.FORMATS)}
)


def _listing(item: ListingKind) -> Callable[[RouteContext], ASGIApp]:
    return lambda site: Listing(item, site.board, site.viewer_of)


def _state_listing(name: str, make: Make, *, for_all: bool = False) -> Callable[[RouteContext], ASGIApp]:
    return _listing(ListingKind(name, make, for_all=for_all))


def _of_job(name: str, make_body: jobpages.MakeBody) -> Callable[[RouteContext], ASGIApp]:
    return lambda site: JobPage(name, make_body, site.connect, site.viewer_of, site.clock.wall, site.slots)


def _runs_of_job(site: RouteContext) -> ASGIApp:
    make_body = partial(jobpages.runs_body, min_coverage=site.diagnosis_settings.min_coverage)
    return _of_job("runs", make_body)(site)


def _job_route(path: str, summary: str, make: Callable[[RouteContext], ASGIApp], schema: Schema) -> ApiRoute:
    answers = ((JSON, schema), (CSV, schemas.TEXT))
    return ApiRoute(path, summary, make, answers, (_JOB, _FORMAT), missing=True)


# The routes of frequent requests come first.
ROUTES = (
    ApiRoute(
        "/api/v1/frame",
        "One octet for each square: 255 is a missing value, otherwise value = octet × step of the metric.",
        _listing(ListingKind("frame", responses.frame, "metric", "util", OCTETS, of_metric=True)),
        ((OCTETS, schemas.OCTETS),),
        (_METRIC,),
    ),
    ApiRoute(
        "/api/v1/jobs",
        "Running and pending jobs: all of them, or the changes since a version.",
        _listing(ListingKind("jobs", responses.jobs, "since", same_as=responses.known_version)),
        ((JSON, schemas.JOBS),),
        (_SINCE,),
    ),
    ApiRoute(
        "/api/v1/layout",
        "All metrics, and all squares by zone, rack and node, numbered in this order.",
        _state_listing("layout", responses.layout, for_all=True),
        ((JSON, schemas.LAYOUT),),
    ),
    ApiRoute(
        "/api/v1/attention",
        "Running jobs that need attention, the most serious first.",
        _state_listing("attention", responses.attention),
        ((JSON, schemas.ATTENTION),),
    ),
    ApiRoute(
        "/api/v1/free",
        "The number of free GPUs of each type, and when the next one becomes free.",
        _state_listing("free", responses.free, for_all=True),
        ((JSON, schemas.FREE),),
    ),
    ApiRoute(
        "/api/v1/queue",
        "Reasons why jobs wait, and the order in which Slurm expects them to start.",
        _state_listing("queue", responses.queue, for_all=True),
        ((JSON, schemas.QUEUE),),
    ),
    ApiRoute(
        "/api/v1/reservations",
        "Current and future reservations.",
        _state_listing("reservations", responses.reservations),
        ((JSON, schemas.RESERVATIONS),),
    ),
    ApiRoute(
        "/api/v1/usage",
        "Mean numbers of GPUs over the last days, in bins of equal length; only operators see `busy`.",
        lambda site: UsageListing(site.connect, site.viewer_of, site.clock, site.slots),
        ((JSON, schemas.USAGE),),
        (RouteParameter("days", "1 by default", {"type": "string", "enum": list(usage.DAYS)}),),
    ),
    ApiRoute(
        "/api/v1/me",
        "The signed-in user, their limits with usage, and forecasts for their pending jobs.",
        lambda site: Me(site.board, site.connect, site.viewer_of, site.clock, site.slots),
        ((JSON, schemas.ME),),
    ),
    ApiRoute(
        "/api/v1/events",
        "Server-sent events: `state` with {version, layout, as_of_s} at each new state; comments every 15 s.",
        lambda site: Events(site.board, site.viewer_of, site.clock.monotonic),
        ((b"text/event-stream", schemas.TEXT),),
    ),
    ApiRoute(
        "/api/v1/runs",
        "Runs that ended in the last 30 days, 50 per page: for users their own, for operators all.",
        lambda site: EndedRunsPage(site.connect, site.viewer_of, site.clock, site.slots),
        ((JSON, schemas.ENDED_RUNS),),
        (
            RouteParameter(
                "own", "true for the viewer's own runs", {"type": "string", "enum": list(ended.FLAGS)}
            ),
            RouteParameter(
                "find",
                "a job, user, account or application; also user:NAME, account:NAME, app:NAME",
                schemas.TEXT,
            ),
            RouteParameter(
                "sort", "the sort key; end by default", {"type": "string", "enum": list(ended.SORTS)}
            ),
            RouteParameter("order", "desc by default", {"type": "string", "enum": list(ended.ORDERS)}),
            RouteParameter("cursor", "the cursor of the previous page", schemas.TEXT),
        ),
    ),
    _job_route(
        "/api/v1/jobs/{job}",
        "All runs of a job, with p25 and p95 of each metric, the use of what it requested, and suggestions.",
        _runs_of_job,
        schemas.RUNS,
    ),
    _job_route(
        "/api/v1/jobs/{job}/timeline",
        "The timeline of each run on each device; of running jobs with up to 64 GPUs up to the last minute.",
        _of_job("timeline", jobpages.timelines_body),
        schemas.TIMELINES,
    ),
    _job_route(
        "/api/v1/jobs/{job}/window",
        "The last ten minutes at full resolution.",
        _of_job("window", jobpages.windows_body),
        schemas.WINDOWS,
    ),
    ApiRoute(
        "/api/v1/jobs/{job}/diagnosis",
        "The verdict on a run: why it is slow. It is computed on request, which takes seconds.",
        lambda site: VerdictPage(site.diagnoses, site.viewer_of),
        ((JSON, schemas.DIAGNOSIS),),
        (
            _JOB,
            RouteParameter("run", "the submit time of the run; the newest by default", schemas.WHOLE),
        ),
        missing=True,
    ),
    ApiRoute(
        "/api/v1/jobs/{job}/queued",
        "A pending or running job as slurmctld last reported it; if pending, the reason and expected start.",
        lambda site: QueuedJobPage(
            site.board, Forecasts(site.connect, site.clock), site.viewer_of, site.slots
        ),
        ((JSON, schemas.QUEUED),),
        (_JOB,),
    ),
    ApiRoute(
        "/squares.svg",
        "All squares as a picture, for browsers without scripts and for printing.",
        _listing(ListingKind("squares", responses.squares, "metric", "util", SVG, of_metric=True)),
        ((SVG, schemas.TEXT),),
        (_METRIC,),
    ),
)
