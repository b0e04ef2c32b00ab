"""Add the node to the key of devices, to keep nodes from replacing the rows of other nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the node to the key of `device`. The step can be repeated."""
    inspector = sa.inspect(op.get_bind())
    if inspector.get_pk_constraint("device")["constrained_columns"] == ["node", "uuid"]:
        return
    if op.get_bind().dialect.name != "sqlite":
        op.execute("ALTER TABLE device DROP PRIMARY KEY, ADD PRIMARY KEY (node, uuid)")
        return
    # SQLite cannot change a primary key, so the table is replaced, in one transaction.
    columns = inspector.get_columns("device")
    op.create_table(
        "device_by_node",
        *(sa.Column(known["name"], known["type"], nullable=known["nullable"]) for known in columns),
        sa.PrimaryKeyConstraint("node", "uuid"),
    )
    names = ", ".join(f'"{known["name"]}"' for known in columns)
    op.execute(f"INSERT INTO device_by_node ({names}) SELECT {names} FROM device")
    op.drop_table("device")
    op.rename_table("device_by_node", "device")
    op.create_index("device_node", "device", ["node", "at_s"])
