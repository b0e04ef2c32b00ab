"""Store reservations: requests, decisions and outcomes."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_INDICES = {"reservation_state": ["cluster", "state"], "reservation_over": ["cluster", "over_s"]}


def upgrade() -> None:
    """Add the table. The step can be repeated."""
    op.create_table(
        "reservation",
        sa.Column(
            "reservation_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        *(sa.Column(name, sa.String(255), nullable=False) for name in ("cluster", "user", "account")),
        sa.Column("partition", sa.String(255), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_type", sa.String(255)),
        sa.Column("n_nodes", sa.Integer(), nullable=False),
        sa.Column("duration_s", sa.BigInteger(), nullable=False),
        sa.Column("earliest_s", sa.BigInteger(), nullable=False),
        sa.Column("latest_s", sa.BigInteger()),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requested_s", sa.BigInteger(), nullable=False),
        sa.Column("decided_s", sa.BigInteger()),
        sa.Column("decided_by", sa.String(255)),
        sa.Column("decided_why", sa.Text()),
        sa.Column("start_s", sa.BigInteger()),
        sa.Column("end_s", sa.BigInteger()),
        sa.Column("nodes", sa.Text()),
        sa.Column("trouble", sa.Text()),
        sa.Column("first_job_id", sa.BigInteger()),
        sa.Column("first_eligible_s", sa.BigInteger()),
        sa.Column("first_start_s", sa.BigInteger()),
        sa.Column("over_s", sa.BigInteger()),
        sa.Column("over_why", sa.Text()),
        if_not_exists=True,
        **_OPTIONS,
    )
    known = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("reservation")}
    for name, columns in _INDICES.items():
        if name not in known:
            op.create_index(name, "reservation", columns)
