"""Rename columns to standard terms, such as allocated_s instead of held_s."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_RENAMED = {
    "run": {"told_seq": "reported_seq"},
    "run_device": {"held_s": "allocated_s"},
    "verdict": {"told_s": "reported_at_s", "over_s": "ended_s"},
    "forecast_model": {"made_s": "created_s"},
    "forecast": {
        "low_s": "lower_s",
        "middle_s": "median_s",
        "high_s": "upper_s",
        "made_s": "created_s",
    },
    "reservation": {"trouble": "error", "over_s": "ended_s", "over_why": "ended_why"},
}


def upgrade() -> None:
    """Rename the columns that still have their old names. An interrupted upgrade can be repeated."""
    inspector = sa.inspect(op.get_bind())
    for table, names in _RENAMED.items():
        for column in inspector.get_columns(table):
            if new := names.get(column["name"]):
                # MariaDB before 10.5.2 has only CHANGE COLUMN, which requires the type.
                op.alter_column(
                    table,
                    column["name"],
                    new_column_name=new,
                    existing_type=column["type"],
                    existing_nullable=column["nullable"],
                )
