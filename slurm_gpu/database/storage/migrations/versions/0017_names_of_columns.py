"""Rename columns of audit events and decisions, such as action instead of act."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_RENAMED = {
    "audit": {"who": "reported_by", "act": "action"},
    "decision": {"asked": "operation"},
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
