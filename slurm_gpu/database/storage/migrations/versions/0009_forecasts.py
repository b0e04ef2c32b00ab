"""Store models of waiting times, and forecasts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMBLOB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_INDICES = {"forecast_at": ["at_s"], "forecast_job": ["cluster", "job_id", "at_s"]}


def upgrade() -> None:
    """Add the tables. The step can be repeated."""
    op.create_table(
        "forecast_model",
        sa.Column("cluster", sa.String(255), primary_key=True),
        sa.Column("made_s", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary().with_variant(MEDIUMBLOB(), "mysql"), nullable=False),
        if_not_exists=True,
        **_OPTIONS,
    )
    op.create_table(
        "forecast",
        sa.Column(
            "forecast_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("cluster", sa.String(255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("low_s", sa.BigInteger(), nullable=False),
        sa.Column("middle_s", sa.BigInteger(), nullable=False),
        sa.Column("high_s", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("made_s", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **_OPTIONS,
    )
    known = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("forecast")}
    for name, columns in _INDICES.items():
        if name not in known:
            op.create_index(name, "forecast", columns)
