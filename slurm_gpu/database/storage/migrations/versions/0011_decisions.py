"""Store the decisions of job_submit.lua on submissions and updates."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_INDICES = {"decision_at": ["at_s"], "decision_token": ["token"]}


def upgrade() -> None:
    """Add the table. The step can be repeated."""
    op.create_table(
        "decision",
        sa.Column("decision_id", sa.String(32), primary_key=True),
        sa.Column("cluster", sa.String(255), nullable=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("asked", sa.String(8), nullable=False),
        sa.Column("verdict", sa.String(8), nullable=False),
        sa.Column("token", sa.String(64)),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("rules", sa.Text()),
        sa.Column("scores", sa.Text()),
        sa.Column("job", sa.Text(), nullable=False),
        if_not_exists=True,
        **_OPTIONS,
    )
    known = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("decision")}
    for name, columns in _INDICES.items():
        if name not in known:
            op.create_index(name, "decision", columns)
