"""Store the cluster's usage over time."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Add the table. The step can be repeated."""
    op.create_table(
        "cluster_usage",
        sa.Column("cluster", sa.String(255), primary_key=True),
        sa.Column("from_s", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("n_samples", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("allocated", sa.Double(), nullable=False),
        sa.Column("busy", sa.Double()),
        sa.Column("waiting_jobs", sa.Double(), nullable=False),
        sa.Column("waiting_gpus", sa.Double(), nullable=False),
        if_not_exists=True,
        **_OPTIONS,
    )
