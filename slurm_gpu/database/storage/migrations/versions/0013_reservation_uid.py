"""Assign reservations to uids, since a user name may be reassigned to another person."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_COLUMNS = "cluster", "user", "uid"


def upgrade() -> None:
    """Add the column, and fill it for users whose runs all have the same uid. The step can be repeated."""
    connection = op.get_bind()
    known = {column["name"] for column in sa.inspect(connection).get_columns("reservation")}
    if "uid" not in known:
        op.add_column("reservation", sa.Column("uid", sa.BigInteger()))
    reservation, run = (sa.table(name, *map(sa.column, _COLUMNS)) for name in ("reservation", "run"))
    open_ones = reservation.c.uid.is_(None)
    names = sa.select(reservation.c.cluster, reservation.c.user).where(open_ones).distinct()
    # Each user has a separate query, because a user may have a million runs. The query avoids HAVING: SQLite
    # accepts HAVING without GROUP BY only from 3.39 on, and RHEL 9 has 3.34.
    for cluster, user in connection.execute(names).all():
        of_user = run.c.cluster == cluster, run.c.user == user
        bounds = sa.select(sa.func.min(run.c.uid), sa.func.max(run.c.uid)).where(*of_user)
        first, last = connection.execute(bounds).one()
        if first is not None and first == last:
            its = open_ones, reservation.c.cluster == cluster, reservation.c.user == user
            connection.execute(reservation.update().where(*its).values(uid=first))
