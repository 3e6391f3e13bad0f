"""Run by Alembic, on the connection that bus/sql/migrations.py opened and in its transaction."""

from alembic import context

from cell_conductor.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    target_metadata=metadata,
    # SQLite can roll back changes of tables too.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
