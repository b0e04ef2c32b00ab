"""Run migrations for Alembic, always online and on the connection of Database.upgrade()."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
