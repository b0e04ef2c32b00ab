"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Each step must bear being run again: MariaDB commits every DDL statement by itself."""
    ${upgrades if upgrades else "pass"}
