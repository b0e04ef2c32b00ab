"""What the read API answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from slurm_gpu.errors import DatabaseError, RecordError
from slurm_gpu.wire import DeviceFacts, Event, Host, Record, Timeline, Window
from slurm_gpu.wire.timeline import read_timeline

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
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
        """A dict that json.dumps takes; what belongs to one job only where it was asked for."""
        values = {_KEYS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        for name in _LISTS:
            items = values.pop(name)
            if items is not None:
                values[name] = [item.to_wire() for item in items]
        facts = values.pop("device_facts")
        if facts is not None:
            values["device_facts"] = {uuid: item.to_wire() for uuid, item in facts.items()}
        return values

    @classmethod
    def from_json(cls, value: Any) -> Run:
        """Read one run of an answer; raises DatabaseError where a key is missing."""
        try:
            values = {f.name: value.get(_KEYS.get(f.name, f.name)) for f in fields(cls)}
            for name, read in _LISTS.items():
                if values[name] is not None:
                    values[name] = tuple(read(item, {}) for item in values[name])
            if values["device_facts"] is not None:
                facts = values["device_facts"].items()
                values["device_facts"] = {uuid: DeviceFacts.from_wire(item, {}) for uuid, item in facts}
            missing = [name for name in ("id", "job_id", "state", "submit_s") if values[name] is None]
        except (AttributeError, TypeError, RecordError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a run that cannot be read: {error}") from error
        if missing:
            raise DatabaseError(f"slurm-gpudbd answered a run without {', '.join(missing)}")
        return cls(**values)


_LISTS: Mapping[str, Callable[[Any, dict[str, str]], Any]] = {
    "devices": Record.from_wire,
    "hosts": Host.from_wire,
    "events": Event.from_wire,
}


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
        """A dict that json.dumps takes."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "runs": [run.to_json() for run in self.runs]}

    @classmethod
    def from_json(cls, value: Any) -> RunPage:
        """Read an answer of /v1/runs or /v1/runs/ID."""
        if not isinstance(value, dict) or not isinstance(value.get("runs"), list):
            raise DatabaseError("slurm-gpudbd answered something other than runs")
        return cls(
            runs=tuple(Run.from_json(run) for run in value["runs"]),
            cursor=value.get("cursor"),
            left_out=value.get("left_out", 0),
            events_left_out=value.get("events_left_out", 0),
        )


_LATER = frozenset({"silent_nodes", "rejected", "last_rejected_s", "learned_s", "web_refused"})
"""Keys of a health that an older slurm-gpudbd does not tell."""


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

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, value: Any) -> AuditEvent:
        """Read one of an answer; raises DatabaseError."""
        try:
            return cls(**{f.name: value.get(f.name) for f in fields(cls)})
        except AttributeError as error:
            raise DatabaseError(f"slurm-gpudbd answered an act that cannot be read: {error}") from error


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

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, value: Any) -> Decision:
        """Read one of an answer; raises DatabaseError."""
        try:
            return cls(**{f.name: value[f.name] for f in fields(cls)})
        except (AttributeError, KeyError, TypeError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a decision that cannot be read: {error!r}") from error


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
    silent_nodes: Sequence[str] = ()
    rejected: Mapping[str, int] | None = None
    last_rejected_s: float | None = None
    learned_s: float | None = None
    """When it was learned what forecasts stand on; None: never, or it does not tell."""
    web_refused: Sequence[Mapping[str, Any]] = ()
    """Who asked as slurm-gpuweb in the last minutes and was refused: uid, user, address, at_s."""
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "others"}

    @classmethod
    def from_json(cls, value: Any) -> Health:
        """Read an answer of /v1/health; keys of a newer version go to `others`."""
        names = {f.name for f in fields(cls)} - {"others"}
        try:
            known = {name: value[name] for name in names - _LATER}
            known["silent_nodes"] = tuple(value.get("silent_nodes", ()))
            if (rejected := value.get("rejected")) is not None:
                known["rejected"] = {str(kind): int(n) for kind, n in rejected.items()}
            known["last_rejected_s"] = value.get("last_rejected_s")
            known["learned_s"] = value.get("learned_s")
            known["web_refused"] = tuple(map(dict, value.get("web_refused", ())))
            others = {key: item for key, item in value.items() if key not in names}
            known["wire"] = (int(value["wire"][0]), int(value["wire"][1]))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a health that cannot be read: {error!r}") from error
        return cls(**known, others=others)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """The course of a run on one of its devices; `timeline` is None where none was kept."""

    node: str
    device: str
    timeline: Timeline | None

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        timeline = None if self.timeline is None else self.timeline.to_wire()
        return {"node": self.node, "device": self.device, "timeline": timeline}

    @classmethod
    def from_json(cls, value: Any) -> DeviceTimeline:
        """Read one device of an answer; raises RecordError, KeyError or TypeError where it is none."""
        timeline = value["timeline"]
        return cls(
            node=value["node"],
            device=value["device"],
            timeline=None if timeline is None else read_timeline("timeline", timeline),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """The course of one run; `devices` is None of another user's."""

    id: str
    job_id: int
    submit_s: int
    devices: Sequence[DeviceTimeline] | None

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        devices = None if self.devices is None else [item.to_json() for item in self.devices]
        return {"id": self.id, "job_id": self.job_id, "submit_s": self.submit_s, "devices": devices}

    @classmethod
    def from_json(cls, value: Any) -> RunTimeline:
        """Read one run of an answer; raises DatabaseError where that cannot be."""
        try:
            devices = value["devices"]
            return cls(
                id=value["id"],
                job_id=value["job_id"],
                submit_s=value["submit_s"],
                devices=None if devices is None else tuple(map(DeviceTimeline.from_json, devices)),
            )
        except (KeyError, TypeError, RecordError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a timeline that cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWindow:
    """A window with the node it came from, and when it arrived."""

    node: str
    at_s: int
    window: Window

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {"node": self.node, "at_s": self.at_s, **self.window.to_wire()}

    @classmethod
    def from_json(cls, value: Any) -> NodeWindow:
        """Read one window of an answer; raises DatabaseError where it is none."""
        try:
            return cls(node=value["node"], at_s=value["at_s"], window=Window.from_wire(value, {}))
        except (KeyError, TypeError, RecordError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a window that cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node as it told of itself: when it was heard last and from which slurm-gpud, and its devices.

    `heard_s` and `version` are None where it has sent nothing since slurm-gpudbd started.
    """

    node: str
    heard_s: float | None
    version: str | None
    devices: Sequence[DeviceFacts]

    @property
    def gpus(self) -> Sequence[DeviceFacts]:
        """Its GPUs, without their MIG instances."""
        return [item for item in self.devices if item.parent is None]

    def slurm_gpus(self) -> set[int]:
        """How many GPUs Slurm may say that it has: a GPU with MIG instances counts once, or as these."""
        parents = {item.parent for item in self.devices if item.parent is not None}
        return {len(self.gpus), sum(item.uuid not in parents for item in self.devices)}

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        devices = [item.to_wire() for item in self.devices]
        return {"node": self.node, "heard_s": self.heard_s, "version": self.version, "devices": devices}

    @classmethod
    def from_json(cls, value: Any) -> NodeReport:
        """Read one node of an answer; raises DatabaseError where it is none."""
        try:
            devices = tuple(DeviceFacts.from_wire(item, {}) for item in value["devices"])
            return cls(
                node=value["node"], heard_s=value["heard_s"], version=value["version"], devices=devices
            )
        except (KeyError, TypeError, RecordError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a node that cannot be read: {error!r}") from error
