"""Store all changes to the cluster with their evidence."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. The step can be repeated."""
    options = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.String(32), primary_key=True),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("act", sa.String(255), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("old", sa.Text()),
        sa.Column("new", sa.Text()),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text().with_variant(MEDIUMTEXT(), "mysql")),
        if_not_exists=True,
        **options,
    )
    known = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("audit")}
    if "audit_at" not in known:
        op.create_index("audit_at", "audit", ["at_s"])
