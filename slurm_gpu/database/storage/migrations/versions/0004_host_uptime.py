"""Store the start of host records in seconds since boot."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. The step can be repeated."""
    known = sa.inspect(op.get_bind()).get_columns("run_host")
    if "uptime_s" not in {column["name"] for column in known}:
        op.add_column("run_host", sa.Column("uptime_s", sa.Double()))
