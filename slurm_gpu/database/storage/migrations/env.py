"""Alembic's entry point: always online, on the connection of Database.upgrade()."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
