"""Alembic runs this file, on the connection and in the transaction of bus/sql/migrations.py."""

from alembic import context

from placement_worker.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    target_metadata=metadata,
    # SQLite, too, can roll back changes of tables.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
