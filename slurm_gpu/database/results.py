"""What the read API answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from slurm_gpu.errors import DatabaseError, RecordError
from slurm_gpu.records import Record

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
    account: str
    qos: str
    partition: str
    state: str
    submit_s: int
    eligible_s: int | None
    start_s: int | None
    end_s: int | None
    elapsed_s: int | None
    suspended_s: int
    time_limit_s: int | None
    nodes: str
    gpu_type: str | None
    n_nodes: int
    n_gpus: float | None
    n_gpus_requested: float | None = None
    wait_h: float | None
    submit_wait_h: float | None
    run_h: float | None
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
    devices: Sequence[Record] | None = None

    @property
    def has_started(self) -> bool:
        """False while it waits, and where it ended in the queue."""
        return self.start_s is not None

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes; `devices` only where they were asked for."""
        values = {_KEYS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        devices = values.pop("devices")
        if devices is not None:
            values["devices"] = [record.to_wire() for record in devices]
        return values

    @classmethod
    def from_json(cls, value: Any) -> Run:
        """Read one run of an answer; raises DatabaseError where a key is missing."""
        try:
            values = {f.name: value.get(_KEYS.get(f.name, f.name)) for f in fields(cls)}
            if values["devices"] is not None:
                values["devices"] = tuple(Record.from_wire(record) for record in values["devices"])
            missing = [name for name in ("id", "job_id", "state", "submit_s") if values[name] is None]
        except (AttributeError, TypeError, RecordError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a run that cannot be read: {error}") from error
        if missing:
            raise DatabaseError(f"slurm-gpudbd answered a run without {', '.join(missing)}")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some runs, newest first; `cursor` asks for the next ones, None at the end."""

    runs: Sequence[Run]
    cursor: str | None

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {"runs": [run.to_json() for run in self.runs], "cursor": self.cursor}

    @classmethod
    def from_json(cls, value: Any) -> RunPage:
        """Read an answer of /v1/runs or /v1/runs/ID."""
        if not isinstance(value, dict) or not isinstance(value.get("runs"), list):
            raise DatabaseError("slurm-gpudbd answered something other than runs")
        return cls(runs=tuple(Run.from_json(run) for run in value["runs"]), cursor=value.get("cursor"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How slurm-gpudbd is: its versions, and how far its import of Slurm's accounting has come."""

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
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "others"}

    @classmethod
    def from_json(cls, value: Any) -> Health:
        """Read an answer of /v1/health; keys of a newer version go to `others`."""
        names = {f.name for f in fields(cls)} - {"others"}
        try:
            known = {name: value[name] for name in names - {"silent_nodes"}}
            known["silent_nodes"] = tuple(value.get("silent_nodes", ()))
            others = {key: item for key, item in value.items() if key not in names}
            known["wire"] = (int(value["wire"][0]), int(value["wire"][1]))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a health that cannot be read: {error!r}") from error
        return cls(**known, others=others)
