"""Alembic's entrance: migrates the connection that :mod:`knowledge_base.database` hands over, in its transaction."""

from alembic import context

from knowledge_base.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,  # the connection is inside one transaction already; SQLite's DDL obeys it
    render_as_batch=True,  # SQLite alters tables by copying them
)
with context.begin_transaction():
    context.run_migrations()
