"""Add runs, their records per device, events and watermarks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade in repeatable steps, since MariaDB commits every DDL statement separately."""
    options = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "run",
        sa.Column("run_id", row_id, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("submit_s", sa.BigInteger(), nullable=False),
        sa.Column("sluid", sa.String(64)),
        sa.Column("restart", sa.Integer()),
        sa.Column("array_job_id", sa.BigInteger()),
        sa.Column("array_task", sa.BigInteger()),
        sa.Column("het_job_id", sa.BigInteger()),
        sa.Column("het_offset", sa.Integer()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("uid", sa.BigInteger()),
        sa.Column("account", sa.String(255), nullable=False),
        sa.Column("qos", sa.String(255), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("exit_code", sa.String(32), nullable=False),
        sa.Column("eligible_s", sa.BigInteger()),
        sa.Column("start_s", sa.BigInteger()),
        sa.Column("end_s", sa.BigInteger()),
        sa.Column("elapsed_s", sa.BigInteger(), nullable=False),
        sa.Column("suspended_s", sa.BigInteger(), nullable=False),
        sa.Column("time_limit_s", sa.BigInteger()),
        sa.Column("n_nodes", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("tres_requested", sa.Text(), nullable=False),
        sa.Column("tres_allocated", sa.Text(), nullable=False),
        sa.Column("admin_comment", sa.Text(), nullable=False),
        sa.Column("allocated_mgpu", sa.BigInteger()),
        sa.Column("gpu_type", sa.String(255)),
        sa.Column("first_submit_s", sa.BigInteger()),
        sa.Column("granted_mgpu", sa.BigInteger()),
        sa.Column("ugpucore", sa.Double()),
        sa.Column("ugpumem", sa.Double()),
        sa.Column("coverage", sa.Double()),
        sa.Column("energy_j", sa.Double()),
        sa.Column("derive_due", sa.Boolean(), nullable=False),
        sa.UniqueConstraint("cluster", "job_id", "submit_s", name="run_key"),
        if_not_exists=True,
        **options,
    )
    _create_index("run_account_newest", "run", ["account", "submit_s", "run_id"])
    _create_index("run_array", "run", ["array_job_id"])
    _create_index("run_derive_due", "run", ["derive_due"])
    _create_index("run_end", "run", ["end_s"])
    _create_index("run_het", "run", ["het_job_id"])
    _create_index("run_newest", "run", ["submit_s", "run_id"])
    _create_index("run_state_newest", "run", ["state", "submit_s", "run_id"])
    _create_index("run_user_newest", "run", ["user", "submit_s", "run_id"])
    op.create_table(
        "run_device",
        sa.Column("segment", sa.String(16), primary_key=True),
        sa.Column("device", sa.String(255), primary_key=True),
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
        sa.Column("util_hist_ms", sa.Text()),
        sa.Column("mem_hist_ms", sa.Text()),
        sa.Column("statistics", sa.Text(), nullable=False),
        if_not_exists=True,
        **options,
    )
    _create_index("run_device_job", "run_device", ["cluster", "job_id"])
    _create_index("run_device_match_due", "run_device", ["match_due"])
    _create_index("run_device_run", "run_device", ["run_id"])
    op.create_table(
        "event",
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("boot_id", sa.String(255), primary_key=True),
        sa.Column("n", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(255), nullable=False),
        sa.Column("device", sa.String(255)),
        sa.Column("job_id", sa.BigInteger()),
        sa.Column("data", sa.Text(), nullable=False),
        if_not_exists=True,
        **options,
    )
    _create_index("event_at", "event", ["at_s"])
    _create_index("event_job", "event", ["job_id"])
    op.create_table(
        "watermark",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("value_s", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **options,
    )


def _create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index unless it exists; unlike MariaDB, MySQL has no CREATE INDEX IF NOT EXISTS."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)
