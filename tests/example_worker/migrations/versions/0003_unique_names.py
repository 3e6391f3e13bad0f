from alembic.operations import Operations

revision = "0003"
down_revision = "0002"


def upgrade(op: Operations) -> None:
    op.create_index("uq_crates_name_colour", "crates", ["name", "colour"], unique=True)
