"""Store the server types and zones of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_COLUMNS = "server_type", "zone"
_ROWS_AT_ONCE = 10_000


def upgrade() -> None:
    """Add the columns; their values for earlier runs are derived step by step. The step can be repeated."""
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("run")}
    for name in _COLUMNS:
        if name not in known:
            op.add_column("run", sa.Column(name, sa.String(255)))
    if op.get_bind().dialect.name == "sqlite":  # on SQLite, the upgrade is one transaction
        _mark_due()
        return
    with op.get_context().autocommit_block():
        _mark_due()


def _mark_due() -> None:
    run = sa.table("run", sa.column("run_id"), sa.column("nodes"), sa.column("derive_due", sa.Boolean()))
    connection = op.get_bind()
    last = connection.execute(sa.select(sa.func.max(run.c.run_id))).scalar() or 0
    for begin in range(0, last + 1, _ROWS_AT_ONCE):
        some = run.c.run_id.between(begin, begin + _ROWS_AT_ONCE - 1), run.c.nodes != ""
        connection.execute(run.update().where(*some).values(derive_due=sa.true()))
