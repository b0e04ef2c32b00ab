"""Store records in less space: order rows by arrival, and pack statistics, histograms and timelines."""

import binascii
import json
import zlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Names of the copy, before it replaces the table, and of the old table, after it has been replaced.
_COPY, _BEFORE = "run_device_copy", "run_device_before"
_ROWS_AT_ONCE = 500
_HISTOGRAMS = "util_hist_ms", "mem_hist_ms"
_ORDER = "last_s", "segment", "device"
_KEPT = (
    *("segment", "device", "run_id", "match_due", "cluster", "job_id", "restart", "prolog_s", "node"),
    *("boot_id", "seq", "final", "first_s", "last_s", "held_s", "sampled_s", "no_process_s"),
    *("suspended_s", "granted_mgpu"),
)
_INDEXES = {
    "run_device_job": ["cluster", "job_id"],
    "run_device_last": ["last_s"],
    "run_device_match_due": ["match_due"],
    "run_device_run": ["run_id"],
}
# The packed formats "1" and "2", as this migration defined them; slurm_gpu/database/storage/packed.py reads
# them.
_DICTIONARY = b"""\
"nvlink_tx_bytes":["nvlink_rx_bytes":["ecc_uncorrected":["hw_power_brake_slowdown":"hw_thermal_slowdown":\
"sync_boost":"sw_thermal_slowdown":"hw_slowdown":"sw_power_cap":,"nvlink",[1,2,4,8,16,32,64,128,256,512,1024,\
"util","mem_used","sm_active","tensor","pcie","power","sm_clock"]
{"uptime_s":0.0],"device_util_pct":[1000.0,0.0,100.0],"mem_used_mib":[0.0,81920.0],"mem_used_frac":[\
0.0,1.0],"mem_util_pct":[0.0,100.0],"sm_active_frac":[0.0,0.0],"sm_occupancy_frac":[0.0,0.0],"tensor_frac":[\
0.0,0.0],"dram_frac":[0.0,0.0],"power_w":[400.0],"temp_c":[30.0,60.0],"sm_clock_mhz":[210.0,1410.0],\
"processes":[0.0,1.0,1.0],"energy_j":[0.0],"pcie_rx_bytes":[0.0],"pcie_tx_bytes":[0.0],"ecc_corrected":[0.0],\
"throttle_s":{},"util_hist_ms":[0,0,0,0,0,0,0,0,0,0],"mem_hist_ms":[0,0,0,0,0]}"""


def upgrade() -> None:
    """Upgrade; after an interruption at any time, the next call continues after the last copied row."""
    inspector = sa.inspect(op.get_bind())
    if "row_id" in _names(inspector.get_columns("run_device")):
        if _BEFORE in inspector.get_table_names():
            op.drop_table(_BEFORE)
        return
    _make_copy()
    if op.get_bind().dialect.name == "sqlite":  # on SQLite, the upgrade is one transaction
        _copy_rows("INDEXED BY run_device_last")
        op.drop_table("run_device")  # also drops its indexes, whose names are needed again
        op.rename_table(_COPY, "run_device")
        _make_indexes("run_device")
        return
    # Each statement is a separate transaction, because rolling back a single transaction with years of
    # records would take days.
    with op.get_context().autocommit_block():
        _copy_rows("FORCE INDEX (run_device_last)")
    _make_indexes(_COPY)
    op.execute(f"RENAME TABLE run_device TO {_BEFORE}, {_COPY} TO run_device")
    op.drop_table(_BEFORE)


def _make_copy() -> None:
    options = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        _COPY,
        sa.Column("row_id", row_id, primary_key=True, autoincrement=True),
        sa.Column("segment", sa.String(16), nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("run_id", sa.BigInteger()),
        sa.Column("match_due", sa.Boolean(), nullable=False),
        sa.Column("cluster", sa.String(255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart", sa.BigInteger(), nullable=False),
        sa.Column("prolog_s", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("boot_id", sa.String(255), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("first_s", sa.BigInteger(), nullable=False),
        sa.Column("last_s", sa.BigInteger(), nullable=False),
        sa.Column("held_s", sa.Double(), nullable=False),
        sa.Column("sampled_s", sa.Double(), nullable=False),
        sa.Column("no_process_s", sa.Double()),
        sa.Column("suspended_s", sa.Double()),
        sa.Column("granted_mgpu", sa.BigInteger()),
        sa.Column("statistics", sa.LargeBinary(), nullable=False),
        sa.Column("timeline", sa.LargeBinary()),
        sa.UniqueConstraint("segment", "device", name="run_device_key"),
        if_not_exists=True,
        **options,
    )


def _copy_rows(in_order: str) -> None:
    """Copy the rows that have not been copied yet, in the order of their last update."""
    connection, quote = op.get_bind(), op.get_bind().dialect.identifier_preparer.quote
    kept = ", ".join(map(quote, _KEPT))
    reached = sa.text(f"SELECT {', '.join(_ORDER)} FROM {_COPY} ORDER BY row_id DESC LIMIT 1")
    last: Any = connection.execute(reached).one_or_none()
    columns = f"{kept}, {', '.join(_HISTOGRAMS)}, statistics, timeline"
    first = f"SELECT {columns} FROM run_device {in_order}"
    order = f"ORDER BY {', '.join(_ORDER)} LIMIT {_ROWS_AT_ONCE}"
    # Databases can use an index only for the condition `last_s >= :last_s`.
    later = "last_s > :last_s OR segment > :segment OR (segment = :segment AND device > :device)"
    following = f"{first} WHERE last_s >= :last_s AND ({later})"
    # A slurm-gpudbd that was not stopped may have changed rows after they were copied. The changed rows are
    # copied again.
    values = ", ".join(f":{name}" for name in (*_KEPT, "statistics", "timeline"))
    store = sa.text(f"REPLACE INTO {_COPY} ({kept}, statistics, timeline) VALUES ({values})")
    while True:
        if last is None:
            found = connection.execute(sa.text(f"{first} {order}"))
        else:
            place = dict(zip(_ORDER, last, strict=True))
            found = connection.execute(sa.text(f"{following} {order}"), place)
        rows = list(map(dict, found.mappings()))
        if not rows:
            return
        last = [rows[-1][name] for name in _ORDER]
        connection.execute(store, list(map(_packed, rows)))


def _packed(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row with JSON into a row of the new table."""
    statistics = json.loads(row.pop("statistics"))
    for name in _HISTOGRAMS:
        histogram = row.pop(name)
        if histogram is not None:
            statistics[name] = _in_a_row(json.loads(histogram))
    timeline = row.pop("timeline")
    return {
        **row,
        "statistics": b"1" + _deflated(_encoded(statistics)),
        "timeline": None if timeline is None else _packed_timeline(json.loads(timeline)),
    }


def _in_a_row(histogram: dict[str, int]) -> list[int] | dict[str, int]:
    """Convert a histogram to a list: the first percentage, then the ms of each percentage from there on.

    Return the histogram unchanged if data would be lost.
    """
    if not histogram:
        return histogram
    first, last = int(next(iter(histogram))), int(next(reversed(histogram)))
    row = [histogram.get(str(percent), 0) for percent in range(first, last + 1)]
    return [first, *row] if len(row) - row.count(0) == len(histogram) else histogram


def _packed_timeline(timeline: dict[str, Any]) -> bytes:
    series = timeline["series"]
    head = _encoded([timeline["width_s"], timeline["start_s"], *series])
    levels = b"".join(binascii.a2b_base64(one) for one in series.values())
    return b"2" + _deflated(head + b"\n" + levels)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _deflated(text: bytes) -> bytes:
    deflater = zlib.compressobj(3, zlib.DEFLATED, -12, 6, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY)
    return deflater.compress(text) + deflater.flush()


def _make_indexes(table: str) -> None:
    """Create an index unless it exists; unlike MariaDB, MySQL has no CREATE INDEX IF NOT EXISTS."""
    known = _names(sa.inspect(op.get_bind()).get_indexes(table))
    for name, columns in _INDEXES.items():
        if name not in known:
            op.create_index(name, table, columns)


def _names(described: Sequence[Any]) -> set[str]:
    return {item["name"] for item in described}
