"""Alembic's entry: always online, on the connection that Database.upgrade() gives."""

from alembic import context

from slurm_gpu.database.storage.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
