"""A reservation belongs to a uid: a name may be given to another person."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_COLUMNS = "cluster", "user", "uid"


def upgrade() -> None:
    """Add the column, and fill it for users all of whose runs have one uid. It may be run again."""
    connection = op.get_bind()
    known = {column["name"] for column in sa.inspect(connection).get_columns("reservation")}
    if "uid" not in known:
        op.add_column("reservation", sa.Column("uid", sa.BigInteger()))
    reservation, run = (sa.table(name, *map(sa.column, _COLUMNS)) for name in ("reservation", "run"))
    of_user = run.c.cluster == reservation.c.cluster, run.c.user == reservation.c.user, run.c.uid.is_not(None)
    uids = sa.select(sa.func.min(run.c.uid)).where(*of_user)
    only = uids.having(sa.func.min(run.c.uid) == sa.func.max(run.c.uid)).scalar_subquery()
    connection.execute(reservation.update().where(reservation.c.uid.is_(None)).values(uid=only))
