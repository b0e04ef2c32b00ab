"""Alembic's entry: always online, on the connection that Database.upgrade() gives."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
