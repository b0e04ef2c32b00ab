"""Add timelines, windows, host records, applications, devices, and the periods of nodes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade in repeatable steps, since MariaDB commits every DDL statement separately."""
    options = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
    _add_column("run", sa.Column("app", sa.String(255)))
    _add_column("run", sa.Column("app_field", sa.String(255)))
    _add_column("run", sa.Column("told_seq", sa.BigInteger()))
    _add_column("run_device", sa.Column("timeline", sa.Text()))
    _create_index("run_device_last", "run_device", ["last_s"])
    _create_index("event_device_at", "event", ["device", "at_s"])
    op.create_table(
        "run_host",
        sa.Column("segment", sa.String(16), primary_key=True),
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
        sa.Column("cpu_s", sa.Double()),
        sa.Column("rss_max_mib", sa.Double()),
        sa.Column("read_bytes", sa.BigInteger()),
        sa.Column("write_bytes", sa.BigInteger()),
        sa.Column("net_rx_bytes", sa.BigInteger()),
        sa.Column("net_tx_bytes", sa.BigInteger()),
        sa.Column("ib_rx_bytes", sa.BigInteger()),
        sa.Column("ib_tx_bytes", sa.BigInteger()),
        sa.Column("app", sa.String(255)),
        sa.Column("app_field", sa.String(255)),
        sa.Column("app_params", sa.Text()),
        sa.Column("container", sa.Boolean()),
        if_not_exists=True,
        **options,
    )
    _create_index("run_host_job", "run_host", ["cluster", "job_id"])
    _create_index("run_host_match_due", "run_host", ["match_due"])
    _create_index("run_host_run", "run_host", ["run_id"])
    op.create_table(
        "run_window",
        sa.Column("segment", sa.String(16), primary_key=True),
        sa.Column("device", sa.String(255), primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("start_s", sa.Double(), nullable=False),
        sa.Column("width_s", sa.Double(), nullable=False),
        sa.Column("series", sa.Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
        if_not_exists=True,
        **options,
    )
    _create_index("run_window_at", "run_window", ["at_s"])
    _create_index("run_window_job", "run_window", ["job_id"])
    op.create_table(
        "device",
        sa.Column("uuid", sa.String(255), primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(255)),
        sa.Column("minor", sa.BigInteger()),
        sa.Column("index", sa.BigInteger()),
        sa.Column("parent", sa.String(255)),
        sa.Column("gpu_instance", sa.BigInteger()),
        sa.Column("compute_instance", sa.BigInteger()),
        sa.Column("memory_mib", sa.Double()),
        sa.Column("power_limit_w", sa.Double()),
        sa.Column("sm_clock_max_mhz", sa.Double()),
        sa.Column("pcie_bytes_per_s", sa.Double()),
        sa.Column("nvlink_bytes_per_s", sa.Double()),
        sa.Column("pci_bus_id", sa.String(255)),
        sa.Column("driver", sa.String(255)),
        if_not_exists=True,
        **options,
    )
    _create_index("device_node", "device", ["node", "at_s"])
    op.create_table(
        "node_period",
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("from_s", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("server_type", sa.String(255)),
        sa.Column("zone", sa.String(255)),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(255), nullable=False),
        if_not_exists=True,
        **options,
    )


def _add_column(table: str, column: sa.Column) -> None:
    """Add a column unless it exists; only MariaDB has ADD COLUMN IF NOT EXISTS."""
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index unless it exists; unlike MariaDB, MySQL has no CREATE INDEX IF NOT EXISTS."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)
