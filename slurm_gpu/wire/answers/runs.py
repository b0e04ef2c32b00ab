"""Answers of the read API about runs, nodes and health; docs/api.md explains each key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from slurm_gpu.wire import DeviceFacts, Event, Host, Record, Timeline, Window
from slurm_gpu.wire.answers.codec import from_json, to_json
from slurm_gpu.wire.record import with_current_names

# JSON and CSV use the column names of the accounting table.
_KEYS = {
    "n_nodes": "nNODE",
    "n_gpus": "nGPU",
    "n_gpus_requested": "nGPU_requested",
    "wait_h": "WAIT_h",
    "submit_wait_h": "SUBMIT_WAIT_h",
    "run_h": "RUN_h",
    "ugpucore": "uGPUcore",
    "ugpumem": "uGPUmem",
}


class Run(msgspec.Struct, frozen=True, kw_only=True, rename=_KEYS):
    """One run.

    `full` is False for another user's run, which shows only the occupancy; all other fields are None.
    """

    id: str
    """The job ID as Slurm prints it: 17, 17_3 or 17+1."""
    full: bool
    cluster: str
    job_id: int
    array_job_id: int | None
    array_task: int | None
    het_job_id: int | None
    het_offset: int | None
    user: str
    uid: int | None = None
    account: str
    qos: str
    partition: str
    state: str
    submit_s: int
    eligible_s: int | None
    start_s: int | None
    end_s: int | None
    elapsed_s: int | None
    suspended_s: int | None
    time_limit_s: int | None
    nodes: str
    gpu_type: str | None
    server_type: str | None = None
    """The server types of the nodes at the run's start, joined by commas; None if unknown."""
    zone: str | None = None
    n_nodes: int
    n_gpus: float | None
    n_gpus_requested: float | None = None
    wait_h: float | None
    submit_wait_h: float | None
    run_h: float | None
    lender: str | None = None
    """The owners whose idle GPUs the run borrowed, joined by commas; in lists only after the run's end."""
    returned_to: str | None = None
    """The job that received the GPUs that this run returned; only in the answer for one job."""
    returned_in_s: int | None = None
    """Seconds from the time when that job became eligible until its start."""
    # The fields below are set for the caller's own runs, and for operators.
    name: str | None = None
    exit_code: str | None = None
    restart: int | None = None
    tres_requested: Mapping[str, float] | None = None
    tres_allocated: Mapping[str, float] | None = None
    admin_comment: str | None = None
    ugpucore: float | None = None
    ugpumem: float | None = None
    coverage: float | None = None
    energy_j: float | None = None
    app: str | None = None
    app_field: str | None = None
    # The fields below are set in the answer for one job, not in lists.
    devices: Sequence[Record] | None = None
    hosts: Sequence[Host] | None = None
    events: Sequence[Event] | None = None
    device_facts: Mapping[str, DeviceFacts] | None = None

    @property
    def has_started(self) -> bool:
        """Whether the run has started: False while it is pending, or if it ended while pending."""
        return self.start_s is not None

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps; omit details that are None, and missing fields of records."""
        values: dict[str, Any] = to_json(self)
        for name in ("devices", "hosts", "events"):
            if (items := values.pop(name)) is not None:
                values[name] = list(map(_without_gaps, items))
        if (facts := values.pop("device_facts")) is not None:
            values["device_facts"] = {uuid: _without_gaps(item) for uuid, item in facts.items()}
        return values


def _without_gaps(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some runs, newest first; `cursor` requests the next ones, and is None on the last page."""

    runs: Sequence[Run]
    cursor: str | None
    left_out: int = 0
    """The number of older runs of one job that do not fit into the answer."""
    events_left_out: int = 0
    """The number of events of one job that are not included in `runs`."""
    unmatched: int = 0
    """The number of records of one job that match no run of Slurm's accounting."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return {**to_json(replace(self, runs=())), "runs": [run.to_json() for run in self.runs]}

    @classmethod
    def from_json(cls, answer: dict[str, Any]) -> RunPage:
        """Convert decoded JSON to the page of one job; also accept the format of the previous release."""
        runs = answer.get("runs")
        for run in runs if isinstance(runs, list) else ():
            if isinstance(run, dict) and isinstance(run.get("devices"), list):
                run["devices"] = list(map(with_current_names, run["devices"]))
        return from_json(cls, answer)


# Keys of audit events and decisions in 0.2, and the current ones.
_RENAMED = {b"act": b"action", b"asked": b"operation"}


def with_current_keys(body: bytes) -> bytes:
    """Return the JSON of audit events and decisions with the current keys, even if 0.2 wrote it."""
    return re.sub(rb'"(act|asked)":', lambda key: b'"%s":' % _RENAMED[key[1]], body)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """A change that slurm-gpu made to the cluster."""

    id: str
    """32 hexadecimal digits that the acting program chooses. An event that is sent again keeps its ID."""
    at_s: int
    host: str
    action: str
    """The change, such as "limit moved"."""
    subject: str
    why: str
    old: str | None = None
    new: str | None = None
    evidence: Any = None
    reported_by: str | None = None
    """The user who reported the event, authenticated by slurm-gpudbd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A line of decisions.log: a decision of job_submit.lua, or the end of a job's GPU sharing."""

    id: str
    """32 hexadecimal digits that the sender chooses. A decision that is sent again keeps its ID."""
    at_s: int
    host: str
    operation: str
    """The operation: submit, modify or share."""
    verdict: str
    """The verdict: allow or deny, or end if the operation is share."""
    uid: int
    token: str | None = None
    """The reference in the job's AdminComment; None for a rejected job."""
    rules: str | None = None
    """The violated rules as RULE:LIMIT:MODE, joined by commas."""
    scores: str | None = None
    """The scores of zones, as in `zone=` of the line."""
    job: Mapping[str, str] = field(default_factory=dict)
    """The other values of the line, such as account, mgpu and walltime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of slurm-gpudbd: versions, progress of the accounting import, rejected items.

    `rejected` contains the numbers of items rejected since the start, by kind. `rejected` and
    `unmatched_jobs` are None in answers from an older slurm-gpudbd.
    """

    version: str
    wire: tuple[int, int]
    schema: str | None
    database: str
    cluster: str
    now_s: float
    import_interval_s: float
    last_import_s: float | None
    import_error: str | None
    watermark_s: int | None
    watermark_lag_s: float | None
    unmatched: int
    unmatched_jobs: Sequence[int] | None = None
    """Up to ten jobs, newest first, that have no run although their final records ended 1 h to 7 days ago."""
    stale_nodes: Sequence[str] = ()
    rejected: Mapping[str, int] | None = None
    last_rejected_s: float | None = None
    learned_s: float | None = None
    """The time at which the forecast model was trained; None if never, or unknown."""
    web_refused: Sequence[Mapping[str, Any]] = ()
    """Recent rejected callers that claimed to be slurm-gpuweb: uid, user, address, at_s, why, write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """The timeline of a run on one device; None if it is no longer stored."""

    node: str
    device: str
    timeline: Timeline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """The timelines of one run; `devices` is None for another user's run."""

    id: str
    job_id: int
    submit_s: int
    devices: Sequence[DeviceTimeline] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWindow(Window):
    """A window with its node and its time of arrival."""

    node: str
    at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node as reported by its slurm-gpud: time of the last shipment, version and devices.

    `last_seen_s` and `version` are None if it has sent nothing since slurm-gpudbd started.
    """

    node: str
    version: str | None
    devices: Sequence[DeviceFacts]
    last_seen_s: float | None = None

    @property
    def gpus(self) -> Sequence[DeviceFacts]:
        """The GPUs without their MIG instances."""
        return [item for item in self.devices if item.parent is None]

    def slurm_gpus(self) -> set[int]:
        """Return the possible numbers of GPUs in Slurm, which counts either GPUs or their MIG instances."""
        parents = {item.parent for item in self.devices if item.parent is not None}
        return {len(self.gpus), sum(item.uuid not in parents for item in self.devices)}

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps without missing fields of devices."""
        values: dict[str, Any] = to_json(self)
        return {**values, "devices": list(map(_without_gaps, values["devices"]))}
