"""Store how much of a run's GPU time passed without a process on the GPU."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; its values for earlier runs are derived step by step. The step can be repeated."""
    known = sa.inspect(op.get_bind()).get_columns("run")
    if "no_process_mgpu_s" not in {column["name"] for column in known}:
        op.add_column("run", sa.Column("no_process_mgpu_s", sa.BigInteger()))
    run = sa.table("run", sa.column("derive_due", sa.Boolean()), sa.column("coverage", sa.Double()))
    op.execute(run.update().where(run.c.coverage.is_not(None)).values(derive_due=sa.true()))
