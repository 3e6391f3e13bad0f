"""Placement's first tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


class _TransactionId(UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")
_XID = _TransactionId().with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    _create_names()
    _create_providers()
    _create_stumps()
    _create_what_providers_have()
    _create_consumers()
    _create_log()


def _create_names() -> None:
    for table in ("resource_classes", "traits"):
        op.create_table(
            table,
            sa.Column("id", _BIG, sa.Identity(), nullable=False),
            sa.Column("name", sa.String(255), nullable=False),
            sa.Column("is_known", sa.Boolean(), server_default=sa.true(), nullable=False),
            sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
            sa.UniqueConstraint("name", name=f"uq_{table}_name"),
            sqlite_autoincrement=True,
        )


def _create_providers() -> None:
    op.create_table(
        "providers",
        sa.Column("id", _BIG, sa.Identity(), nullable=False),
        sa.Column("uuid", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("parent_id", _BIG),
        sa.Column("root_id", _BIG, nullable=False),
        sa.Column("cell", sa.String(255), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("shape", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.Text(), server_default="{}", nullable=False),
        *(
            sa.ForeignKeyConstraint(
                [column],
                ["providers.id"],
                name=f"fk_providers_{column}",
                deferrable=True,
                initially="DEFERRED",
            )
            for column in ("parent_id", "root_id")
        ),
        sa.PrimaryKeyConstraint("id", name="pk_providers"),
        sa.UniqueConstraint("uuid", name="uq_providers_uuid"),
        sa.UniqueConstraint("name", name="uq_providers_name"),
        sqlite_autoincrement=True,
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("ix_providers_root_id", "providers", ["root_id"])
    op.create_index("ix_providers_parent_id", "providers", ["parent_id"])


def _create_stumps() -> None:
    op.create_table(
        "stumps",
        sa.Column("root", sa.Uuid(), nullable=False),
        sa.Column("cell", sa.String(255), nullable=False),
        sa.Column("shape", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("felled_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("root", name="pk_stumps"),
        sqlite_with_rowid=False,
    )


def _create_what_providers_have() -> None:
    op.create_table(
        "inventories",
        _of_provider(),
        sa.Column("class_id", _BIG, nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("min_unit", sa.BigInteger(), nullable=False),
        sa.Column("max_unit", sa.BigInteger(), nullable=False),
        sa.Column("step_size", sa.BigInteger(), nullable=False),
        sa.Column("allocation_ratio", sa.Double(), nullable=False),
        _to_provider("inventories"),
        sa.ForeignKeyConstraint(["class_id"], ["resource_classes.id"], name="fk_inventories_class_id"),
        sa.PrimaryKeyConstraint("provider_id", "class_id", name="pk_inventories"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "provider_traits",
        _of_provider(),
        sa.Column("trait_id", _BIG, nullable=False),
        sa.Column("set_by_operator", sa.Boolean(), nullable=False),
        _to_provider("provider_traits"),
        sa.ForeignKeyConstraint(["trait_id"], ["traits.id"], name="fk_provider_traits_trait_id"),
        sa.PrimaryKeyConstraint("provider_id", "trait_id", "set_by_operator", name="pk_provider_traits"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "provider_aggregates",
        _of_provider(),
        sa.Column("aggregate", sa.Uuid(), nullable=False),
        _to_provider("provider_aggregates"),
        sa.PrimaryKeyConstraint("provider_id", "aggregate", name="pk_provider_aggregates"),
        sqlite_with_rowid=False,
    )


def _of_provider() -> sa.Column[int]:
    return sa.Column("provider_id", _BIG, nullable=False)


def _to_provider(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=f"fk_{table}_provider_id")


def _create_consumers() -> None:
    op.create_table(
        "server_groups",
        sa.Column("uuid", sa.Uuid(), nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("max_per_host", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_server_groups"),
    )
    op.create_table(
        "consumers",
        sa.Column("id", _BIG, sa.Identity(), nullable=False),
        sa.Column("uuid", sa.Uuid(), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("project_id", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("cell", sa.String(255), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.Column("host", sa.Uuid()),
        sa.Column("server_group", sa.Uuid()),
        sa.Column("held", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_consumers"),
        sa.UniqueConstraint("uuid", name="uq_consumers_uuid"),
        sqlite_autoincrement=True,
    )
    for column in ("ended_at", "server_group"):
        known = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"ix_consumers_{column}", "consumers", [column], postgresql_where=known, sqlite_where=known
        )
    op.create_table(
        "holders",
        sa.Column("provider_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("consumer_id", _BIG, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("provider_id", "consumer_id", name="pk_holders"),
        sqlite_with_rowid=False,
    )


def _create_log() -> None:
    op.create_table(
        "change_log",
        sa.Column("position", _BIG, sa.Identity(), nullable=False),
        sa.Column("written_by", _XID, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_change_log"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_change_log_written_by", "change_log", ["written_by"])
    op.create_table(
        "kept_answers",
        sa.Column("answer", sa.Uuid(), nullable=False),
        sa.Column("page", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("is_last", sa.Boolean(), nullable=False),
        sa.Column("kept_at", _MOMENT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("answer", "page", name="pk_kept_answers"),
    )
    feed = op.create_table(
        "feed",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.String(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_feed_one_row")),
        sa.PrimaryKeyConstraint("id", name="pk_feed"),
    )
    op.bulk_insert(feed, [{"id": 1, "term": 0, "position": 0, "cursor": ""}])


def downgrade() -> None:
    for table in (
        *("feed", "kept_answers", "change_log", "holders", "consumers", "server_groups"),
        *("provider_aggregates", "provider_traits", "inventories", "stumps", "providers"),
        *("traits", "resource_classes"),
    ):
        op.drop_table(table)
