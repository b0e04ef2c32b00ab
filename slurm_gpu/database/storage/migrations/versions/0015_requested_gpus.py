"""Store the requested GPUs of runs, and allow the times of runs to be unknown."""

import json
from collections import defaultdict

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TIMES = "elapsed_s", "suspended_s"
_ROWS_AT_ONCE = 10_000


def upgrade() -> None:
    """Add the column and fill it with the counts of earlier versions. The step can be repeated."""
    columns = {column["name"]: column for column in sa.inspect(op.get_bind()).get_columns("run")}
    if not all(columns[name]["nullable"] for name in _TIMES):
        with op.batch_alter_table("run") as table:
            for name in _TIMES:
                table.alter_column(name, existing_type=sa.BigInteger(), nullable=True)
    if "requested_mgpu" not in columns:
        op.add_column("run", sa.Column("requested_mgpu", sa.BigInteger()))
    if op.get_bind().dialect.name == "sqlite":  # on SQLite, the upgrade is one transaction
        _fill()
        return
    with op.get_context().autocommit_block():
        _fill()


def _fill() -> None:
    run = sa.table("run", *map(sa.column, ("run_id", "tres_requested", "requested_mgpu")))
    connection = op.get_bind()
    last = connection.execute(sa.select(sa.func.max(run.c.run_id))).scalar() or 0
    for begin in range(0, last + 1, _ROWS_AT_ONCE):
        some = run.c.run_id.between(begin, begin + _ROWS_AT_ONCE - 1), run.c.requested_mgpu.is_(None)
        runs_of: dict[int, list[int]] = defaultdict(list)
        for run_id, text in connection.execute(sa.select(run.c.run_id, run.c.tres_requested).where(*some)):
            if (mgpu := _mgpu(text)) is not None:
                runs_of[mgpu].append(run_id)
        for mgpu, run_ids in runs_of.items():
            connection.execute(run.update().where(run.c.run_id.in_(run_ids)).values(requested_mgpu=mgpu))


def _mgpu(text: str) -> int | None:
    tres = json.loads(text)
    if not tres or any(name.startswith(("gres/shard", "gres/mps")) for name in tres):
        return None
    typed = sum(count for name, count in tres.items() if name.startswith("gres/gpu:"))
    return round(1000 * max(tres.get("gres/gpu", 0), typed))
