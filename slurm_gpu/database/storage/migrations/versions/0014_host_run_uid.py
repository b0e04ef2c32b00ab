"""Assign runs of machines without Slurm to the uids of their user names on slurm-gpudbd's host."""

import pwd

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_HOST_CLUSTER = "host:"


def upgrade() -> None:
    """Fill in the uids of the user names that exist on this host now. The step can be repeated."""
    connection = op.get_bind()
    run = sa.table("run", *map(sa.column, ("cluster", "user", "uid")))
    open_ones = run.c.cluster.startswith(_HOST_CLUSTER), run.c.uid.is_(None)
    for name in connection.execute(sa.select(run.c.user).where(*open_ones).distinct()).scalars().all():
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            continue
        connection.execute(run.update().where(*open_ones, run.c.user == name).values(uid=uid))
