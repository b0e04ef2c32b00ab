"""What the read API answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from slurm_gpu.wire import DeviceFacts, Event, Host, Record, Timeline, Window
from slurm_gpu.wire.answers.codec import to_json

# JSON and CSV spell these as the seed's accounting table does.
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
    """One run. `full` is False for another user's, of which only occupancy is shown: the rest is None."""

    id: str
    """The job id as Slurm prints it: 17, 17_3 or 17+1."""
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
    """Of its nodes when it started, joined by commas, as `zone` is; None where nobody says."""
    zone: str | None = None
    n_nodes: int
    n_gpus: float | None
    n_gpus_requested: float | None = None
    wait_h: float | None
    submit_wait_h: float | None
    run_h: float | None
    lender: str | None = None
    """The owners whose idle GPUs it borrowed, joined by commas; in lists known once the run is over."""
    returned_to: str | None = None
    """Of a run that gave them back, the job that got them; only where one job was asked for."""
    returned_in_s: int | None = None
    """From when that job could run until it did."""
    # Below: the caller's own runs, or any for operators.
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
    # Below: only of one job, not in lists.
    devices: Sequence[Record] | None = None
    hosts: Sequence[Host] | None = None
    events: Sequence[Event] | None = None
    device_facts: Mapping[str, DeviceFacts] | None = None

    @property
    def has_started(self) -> bool:
        """False while it waits, and where it ended in the queue."""
        return self.start_s is not None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without gaps of records, and without details where they are None."""
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
    """Some runs, newest first; `cursor` asks for the next ones, None at the end."""

    runs: Sequence[Run]
    cursor: str | None
    left_out: int = 0
    """Of one job: older runs that are not among `runs`, which are as many as one answer has."""
    events_left_out: int = 0
    """Of one job: events that are not among those of `runs`."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**to_json(replace(self, runs=())), "runs": [run.to_json() for run in self.runs]}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One act on the cluster."""

    id: str
    """Made by whoever acts: 32 hexadecimal digits. Told again, it is the same act."""
    at_s: int
    host: str
    act: str
    """What was done, such as "limit moved"."""
    subject: str
    why: str
    old: str | None = None
    new: str | None = None
    evidence: Any = None
    who: str | None = None
    """The user who told, by slurm-gpudbd's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What job_submit.lua decided, or how a job's sharing of a GPU ended: a line of decisions.log."""

    id: str
    """Made by who ships it: 32 hexadecimal digits. Shipped again, it is the same decision."""
    at_s: int
    host: str
    asked: str
    """submit or modify; share."""
    verdict: str
    """allow or deny; end of a share."""
    uid: int
    token: str | None = None
    """By which the job's AdminComment names it; None of what was refused."""
    rules: str | None = None
    """Those that objected, as RULE:LIMIT:MODE, joined by commas."""
    scores: str | None = None
    """Of zones, as `zone=` of the line."""
    job: Mapping[str, str] = field(default_factory=dict)
    """All else that the line says, such as account, mgpu and walltime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How slurm-gpudbd is: its versions, how far its import of Slurm's accounting has come, what it refused.

    `rejected` counts items by kind since it started, None where it does not tell.
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
    stale_nodes: Sequence[str] = ()
    rejected: Mapping[str, int] | None = None
    last_rejected_s: float | None = None
    learned_s: float | None = None
    """When it was learned what forecasts stand on; None: never, or it does not tell."""
    web_refused: Sequence[Mapping[str, Any]] = ()
    """Who asked as slurm-gpuweb in the last minutes and was refused: uid, user, address, at_s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """The course of a run on one of its devices; `timeline` is None where none was kept."""

    node: str
    device: str
    timeline: Timeline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """The course of one run; `devices` is None of another user's."""

    id: str
    job_id: int
    submit_s: int
    devices: Sequence[DeviceTimeline] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWindow(Window):
    """A window with the node it came from, and when it arrived."""

    node: str
    at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node as it told of itself: when it was heard last and from which slurm-gpud, and its devices.

    `last_seen_s` and `version` are None where it has sent nothing since slurm-gpudbd started.
    """

    node: str
    version: str | None
    devices: Sequence[DeviceFacts]
    last_seen_s: float | None = None

    @property
    def gpus(self) -> Sequence[DeviceFacts]:
        """Its GPUs, without their MIG instances."""
        return [item for item in self.devices if item.parent is None]

    def slurm_gpus(self) -> set[int]:
        """How many GPUs Slurm may say that it has: a GPU with MIG instances counts once, or as these."""
        parents = {item.parent for item in self.devices if item.parent is not None}
        return {len(self.gpus), sum(item.uuid not in parents for item in self.devices)}

    def to_json(self) -> dict[str, Any]:
        """Return JSON values without gaps of devices."""
        values: dict[str, Any] = to_json(self)
        return {**values, "devices": list(map(_without_gaps, values["devices"]))}
