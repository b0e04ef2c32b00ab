"""Store the verdicts of slurm-gpudbd's watch over running jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Add the table. The step can be repeated."""
    op.create_table(
        "verdict",
        sa.Column(
            "verdict_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("cluster", sa.String(255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("n_gpus", sa.Double(), nullable=False),
        sa.Column("devices", sa.Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
        sa.Column("nodes", sa.Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
        sa.Column("since_s", sa.Double()),
        sa.Column("told_s", sa.BigInteger(), nullable=False),
        sa.Column("last_s", sa.BigInteger(), nullable=False),
        sa.Column("over_s", sa.BigInteger()),
        sa.Column("body", sa.Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
        sa.UniqueConstraint("cluster", "job_id", "start_s", "cause", name="verdict_run"),
        if_not_exists=True,
        **_OPTIONS,
    )
    known = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("verdict")}
    if "verdict_last" not in known:
        op.create_index("verdict_last", "verdict", ["last_s"])
