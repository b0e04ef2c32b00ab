"""Define the tables of docs/contracts.md, section 2, for queries; migrations create them.

A record's statistics and histograms are packed into one column, in the wire format. Statistics are read
together and merged in Python, and a new metric needs no migration. Writing 58 mostly empty columns per device
would be slower. The columns by which reports filter and sort are derived from the statistics and stored in
`run`. The timeline has its own column, because timelines are kept for a limited time and rarely read.

Rows of `run_device` are ordered by arrival (`row_id`). If they were ordered by their key, which begins with a
random number, pages would be only half full, and each index would repeat the 56 bytes of the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy.engine
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.dialects.mysql import MEDIUMBLOB, MEDIUMTEXT
from sqlalchemy.types import TypeEngine

from slurm_gpu.database.storage.packed import (
    pack_statistics,
    pack_timeline,
    unpack_statistics,
    unpack_timeline,
)

# MariaDB's default collation would treat "GPU-ab" and "gpu-AB" as equal.
_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
# SQLite assigns row numbers only to a column of type INTEGER.
_ROW_ID = BigInteger().with_variant(Integer, "sqlite")
NAME_LENGTH = 255
TOKEN_LENGTH = 64
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

metadata = MetaData()


class Json(TypeDecorator[Any]):
    """Compact JSON as text; None is stored as NULL.

    The JSON types of the databases are not used: MariaDB's type rejects some of Python's valid output, such
    as 32 levels of nesting or half a surrogate pair. A node would resend an event with such content
    indefinitely.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        """Convert for the database."""
        return None if value is None else _to_json(value)

    def process_result_value(self, value: str | None, dialect: object) -> Any:
        """Convert from the database."""
        return None if value is None else json.loads(value)


class LongJson(Json):
    """JSON that may be longer than 64 KiB, the limit of MariaDB's TEXT."""

    cache_ok = True

    def load_dialect_impl(self, dialect: sqlalchemy.engine.Dialect) -> TypeEngine[Any]:
        """Return the type of the column in this dialect."""
        return dialect.type_descriptor(MEDIUMTEXT() if dialect.name == "mysql" else Text())


class PackedColumn(TypeDecorator[Any]):
    """A value that `pack` converts to bytes; None is stored as NULL, and bytes are stored unchanged."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]) -> None:
        super().__init__()
        self.pack, self.unpack = pack, unpack

    def process_bind_param(self, value: Any, dialect: object) -> bytes | None:
        """Convert for the database."""
        return value if value is None or isinstance(value, bytes) else self.pack(value)

    def process_result_value(self, value: bytes | None, dialect: object) -> Any:
        """Convert from the database."""
        return None if value is None else self.unpack(value)


run = Table(
    "run",
    metadata,
    Column("run_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("cluster", String(NAME_LENGTH), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("submit_s", BigInteger, nullable=False),
    Column("sluid", String(64)),
    Column("restart", Integer),
    Column("array_job_id", BigInteger),
    Column("array_task", BigInteger),
    Column("het_job_id", BigInteger),
    Column("het_offset", Integer),
    Column("name", Text, nullable=False),
    Column("user", String(NAME_LENGTH), nullable=False),
    Column("uid", BigInteger),
    Column("account", String(NAME_LENGTH), nullable=False),
    Column("qos", String(NAME_LENGTH), nullable=False),
    Column("partition", Text, nullable=False),
    Column("state", String(32), nullable=False),
    Column("exit_code", String(32), nullable=False),
    Column("eligible_s", BigInteger),
    Column("start_s", BigInteger),
    Column("end_s", BigInteger),
    Column("elapsed_s", BigInteger),
    Column("suspended_s", BigInteger),
    Column("time_limit_s", BigInteger),
    Column("n_nodes", Integer, nullable=False),
    Column("nodes", Text, nullable=False),
    Column("tres_requested", Json, nullable=False),
    Column("tres_allocated", Json, nullable=False),
    Column("admin_comment", Text, nullable=False),
    Column("allocated_mgpu", BigInteger),  # according to Slurm; null if it cannot be determined
    Column("gpu_type", String(NAME_LENGTH)),
    Column("requested_mgpu", BigInteger),  # null if Slurm does not count GPUs, or shares differ in size
    # Server types and zones of the run's nodes at its start (run_placement.py), joined by commas.
    Column("server_type", String(NAME_LENGTH)),
    Column("zone", String(NAME_LENGTH)),
    # Derived from the run's records and sibling rows (derived_columns.py); granted_mgpu is allocated_mgpu if
    # that is known.
    Column("first_submit_s", BigInteger),
    Column("granted_mgpu", BigInteger),
    Column("ugpucore", Double),
    Column("ugpumem", Double),
    Column("coverage", Double),
    Column("energy_j", Double),
    Column("no_process_mgpu_s", BigInteger),
    Column("app", String(NAME_LENGTH)),
    Column("app_field", String(NAME_LENGTH)),
    Column("reported_seq", BigInteger),  # seq of the last report, for runs on machines without Slurm
    Column("derive_due", Boolean, nullable=False),
    UniqueConstraint("cluster", "job_id", "submit_s", name="run_key"),
    Index("run_newest", "submit_s", "run_id"),
    Index("run_user_newest", "user", "submit_s", "run_id"),
    Index("run_account_newest", "account", "submit_s", "run_id"),
    Index("run_state_newest", "state", "submit_s", "run_id"),
    Index("run_array", "array_job_id"),
    Index("run_het", "het_job_id"),
    Index("run_end", "end_s"),
    Index("run_derive_due", "derive_due"),
    **_OPTIONS,
)


def _of_a_segment() -> tuple[Column[Any], ...]:
    """Return the columns that records and host records share: run, job, node, sequence number and time."""
    return (
        Column("run_id", BigInteger),
        Column("match_due", Boolean, nullable=False),
        Column("cluster", String(NAME_LENGTH), nullable=False),
        Column("job_id", BigInteger, nullable=False),
        Column("restart", BigInteger, nullable=False),
        Column("prolog_s", BigInteger, nullable=False),
        Column("node", String(NAME_LENGTH), nullable=False),
        Column("boot_id", String(NAME_LENGTH), nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("final", Boolean, nullable=False),
        Column("first_s", BigInteger, nullable=False),
        Column("last_s", BigInteger, nullable=False),
    )


run_device = Table(
    "run_device",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("segment", String(16), nullable=False),
    Column("device", String(NAME_LENGTH), nullable=False),
    *_of_a_segment(),
    Column("allocated_s", Double, nullable=False),
    Column("sampled_s", Double, nullable=False),
    Column("no_process_s", Double),
    Column("suspended_s", Double),
    Column("granted_mgpu", BigInteger),
    Column("statistics", PackedColumn(pack_statistics, unpack_statistics), nullable=False),
    Column("timeline", PackedColumn(pack_timeline, unpack_timeline)),
    UniqueConstraint("segment", "device", name="run_device_key"),
    Index("run_device_run", "run_id"),
    Index("run_device_last", "last_s"),
    Index("run_device_job", "cluster", "job_id"),
    Index("run_device_match_due", "match_due"),
    **_OPTIONS,
)

run_host = Table(
    "run_host",
    metadata,
    Column("segment", String(16), primary_key=True),
    *_of_a_segment(),
    Column("uptime_s", Double),
    Column("cpu_s", Double),
    Column("rss_max_mib", Double),
    Column("read_bytes", BigInteger),
    Column("write_bytes", BigInteger),
    Column("net_rx_bytes", BigInteger),
    Column("net_tx_bytes", BigInteger),
    Column("ib_rx_bytes", BigInteger),
    Column("ib_tx_bytes", BigInteger),
    Column("app", String(NAME_LENGTH)),
    Column("app_field", String(NAME_LENGTH)),
    Column("app_params", Json),
    Column("container", Boolean),
    Index("run_host_run", "run_id"),
    Index("run_host_job", "cluster", "job_id"),
    Index("run_host_match_due", "match_due"),
    **_OPTIONS,
)

run_window = Table(
    "run_window",
    metadata,
    Column("segment", String(16), primary_key=True),
    Column("device", String(NAME_LENGTH), primary_key=True),
    Column("node", String(NAME_LENGTH), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("at_s", BigInteger, nullable=False),  # arrival of the window
    Column("start_s", Double, nullable=False),
    Column("width_s", Double, nullable=False),
    Column("series", LongJson, nullable=False),
    Index("run_window_at", "at_s"),
    Index("run_window_job", "job_id"),
    **_OPTIONS,
)

device = Table(
    "device",
    metadata,
    # The node is part of the key, as in events, because a node may replace only its own rows.
    Column("node", String(NAME_LENGTH), primary_key=True),
    Column("uuid", String(NAME_LENGTH), primary_key=True),
    Column("at_s", BigInteger, nullable=False),
    Column("name", String(NAME_LENGTH)),
    Column("minor", BigInteger),
    Column("index", BigInteger),
    Column("parent", String(NAME_LENGTH)),
    Column("gpu_instance", BigInteger),
    Column("compute_instance", BigInteger),
    Column("memory_mib", Double),
    Column("power_limit_w", Double),
    Column("sm_clock_max_mhz", Double),
    Column("pcie_bytes_per_s", Double),
    Column("nvlink_bytes_per_s", Double),
    Column("pci_bus_id", String(NAME_LENGTH)),
    Column("driver", String(NAME_LENGTH)),
    Index("device_node", "node", "at_s"),
    **_OPTIONS,
)

node_period = Table(
    "node_period",
    metadata,
    Column("node", String(NAME_LENGTH), primary_key=True),
    Column("from_s", BigInteger, primary_key=True, autoincrement=False),
    Column("server_type", String(NAME_LENGTH)),
    Column("zone", String(NAME_LENGTH)),
    Column("gpus", Integer, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("state", String(NAME_LENGTH), nullable=False),
    **_OPTIONS,
)

event = Table(
    "event",
    metadata,
    Column("node", String(NAME_LENGTH), primary_key=True),
    Column("boot_id", String(NAME_LENGTH), primary_key=True),
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", BigInteger, nullable=False),
    Column("kind", String(NAME_LENGTH), nullable=False),
    Column("device", String(NAME_LENGTH)),
    Column("job_id", BigInteger),
    Column("data", Json, nullable=False),
    Index("event_at", "at_s"),
    Index("event_job", "job_id"),
    Index("event_device_at", "device", "at_s"),
    **_OPTIONS,
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", String(32), primary_key=True),
    Column("at_s", BigInteger, nullable=False),
    Column("reported_by", String(NAME_LENGTH), nullable=False),  # authenticated by MUNGE or the kernel
    Column("host", String(NAME_LENGTH), nullable=False),
    Column("action", String(NAME_LENGTH), nullable=False),
    Column("subject", String(NAME_LENGTH), nullable=False),
    Column("old", Text),
    Column("new", Text),
    Column("why", Text, nullable=False),
    Column("evidence", LongJson),
    Index("audit_at", "at_s"),
    **_OPTIONS,
)

decision = Table(
    "decision",
    metadata,
    Column("decision_id", String(32), primary_key=True),
    Column("cluster", String(NAME_LENGTH), nullable=False),
    Column("at_s", BigInteger, nullable=False),
    Column("host", String(NAME_LENGTH), nullable=False),
    Column("operation", String(8), nullable=False),
    Column("verdict", String(8), nullable=False),
    Column("token", String(TOKEN_LENGTH)),  # NULL for refused jobs
    Column("uid", BigInteger, nullable=False),
    Column("rules", Text),
    Column("scores", Text),
    Column("job", Json, nullable=False),
    Index("decision_at", "at_s"),
    Index("decision_token", "token"),
    **_OPTIONS,
)

verdict = Table(
    "verdict",
    metadata,
    Column("verdict_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("cluster", String(NAME_LENGTH), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("start_s", BigInteger, nullable=False),
    Column("cause", String(64), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("confidence", Double, nullable=False),
    Column("user", String(NAME_LENGTH), nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("n_gpus", Double, nullable=False),
    Column("devices", LongJson, nullable=False),
    Column("nodes", LongJson, nullable=False),
    Column("since_s", Double),
    Column("reported_at_s", BigInteger, nullable=False),
    Column("last_s", BigInteger, nullable=False),
    Column("ended_s", BigInteger),
    Column("body", LongJson, nullable=False),
    UniqueConstraint("cluster", "job_id", "start_s", "cause", name="verdict_run"),
    Index("verdict_last", "last_s"),
    **_OPTIONS,
)

forecast_model = Table(
    "forecast_model",
    metadata,
    Column("cluster", String(NAME_LENGTH), primary_key=True),
    Column("created_s", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary().with_variant(MEDIUMBLOB(), "mysql"), nullable=False),
    **_OPTIONS,
)

forecast = Table(
    "forecast",
    metadata,
    Column("forecast_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("cluster", String(NAME_LENGTH), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("at_s", BigInteger, nullable=False),
    Column("lower_s", BigInteger, nullable=False),
    Column("median_s", BigInteger, nullable=False),
    Column("upper_s", BigInteger, nullable=False),
    Column("source", String(16), nullable=False),
    Column("created_s", BigInteger, nullable=False),  # creation of the model
    Index("forecast_at", "at_s"),
    Index("forecast_job", "cluster", "job_id", "at_s"),
    **_OPTIONS,
)

reservation = Table(
    "reservation",
    metadata,
    Column("reservation_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("cluster", String(NAME_LENGTH), nullable=False),
    Column("user", String(NAME_LENGTH), nullable=False),
    Column("uid", BigInteger),  # null for requests of earlier releases
    Column("account", String(NAME_LENGTH), nullable=False),
    Column("partition", String(NAME_LENGTH), nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(NAME_LENGTH)),
    Column("n_nodes", Integer, nullable=False),
    Column("duration_s", BigInteger, nullable=False),
    Column("earliest_s", BigInteger, nullable=False),
    Column("latest_s", BigInteger),
    Column("why", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("requested_s", BigInteger, nullable=False),
    Column("decided_s", BigInteger),
    Column("decided_by", String(NAME_LENGTH)),
    Column("decided_why", Text),
    Column("start_s", BigInteger),
    Column("end_s", BigInteger),
    Column("nodes", Text),
    Column("error", Text),
    Column("first_job_id", BigInteger),
    Column("first_eligible_s", BigInteger),
    Column("first_start_s", BigInteger),
    Column("ended_s", BigInteger),
    Column("ended_why", Text),
    Index("reservation_state", "cluster", "state"),
    Index("reservation_over", "cluster", "ended_s"),
    **_OPTIONS,
)

cluster_usage = Table(
    "cluster_usage",
    metadata,
    Column("cluster", String(NAME_LENGTH), primary_key=True),
    Column("from_s", BigInteger, primary_key=True, autoincrement=False),
    Column("n_samples", Integer, nullable=False),
    Column("gpus", Double, nullable=False),
    Column("allocated", Double, nullable=False),
    Column("busy", Double),
    Column("waiting_jobs", Double, nullable=False),
    Column("waiting_gpus", Double, nullable=False),
    **_OPTIONS,
)

watermark = Table(
    "watermark",
    metadata,
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("value_s", BigInteger, nullable=False),
    **_OPTIONS,
)
