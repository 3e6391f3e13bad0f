"""The keeper's rows in SQL, for both databases: campaigns with their hosts, movements, questions, budgets, policies, restarts.

Any number of keepers write them. A campaign is worked on by the one keeper that holds it (`take`), until its lease ends. No rule rests on
that: movements are granted under the lock of the ledger, and every other change is decided on locked rows. The locks' order: the
ledger, campaigns, hosts, movements, questions, each in the order of ids.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Table

from bus.messages.keeping import (
    AskMovements,
    BudgetState,
    CampaignHost,
    CampaignId,
    CampaignState,
    HostStage,
    Movement,
    MovementId,
    MovementLife,
)
from bus.messages.policies import PolicyScope, PolicyState
from bus.messages.questions import AskQuestions, Question, QuestionId
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from keeper.core.campaigns import GOING, OPEN, OPEN_STAGES
from keeper.core.policies import width_of
from keeper.core.recovery import Restart
from keeper.tables import budgets, campaigns, hosts, ledger, movements, policies, questions, restarts
from kit.sql import Database, DatabaseSettings, Id, Transaction, among, insert, open_database, read_once

P = ParamSpec("P")
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_campaign = msgspec.json.Decoder(CampaignState).decode
_host = msgspec.json.Decoder(CampaignHost).decode
_movement = msgspec.json.Decoder(Movement).decode
_question = msgspec.json.Decoder(Question).decode
_budget = msgspec.json.Decoder(BudgetState).decode
_policy = msgspec.json.Decoder(PolicyState).decode
_restart = msgspec.json.Decoder(Restart).decode

_is_open = campaigns.c.ended_at.is_(None)
_key = sa.bindparam("key", type_=Id)
_of = sa.bindparam("of", type_=Id)
_SAVE_HOST = (
    sa.update(hosts)
    .where(hosts.c.campaign == _of, hosts.c.host == _key)
    .values(unsaid=hosts.c.unsaid | (hosts.c.stage != sa.bindparam("to", type_=hosts.c.stage.type)))
)
_SAVE_MOVEMENT = sa.update(movements).where(movements.c.id == _key)
_of_others = movements.alias()
_PLAN_AGAIN = _SAVE_MOVEMENT.where(
    (movements.c.life == "withdrawn") | (movements.c.life == "done"),
    ~sa.exists().where(_of_others.c.instance == _of, _of_others.c.is_open),
)


class Unsaid(Struct, frozen=True):
    """Changes of which no listener may have heard yet: campaigns, hosts with their campaigns, movements, questions."""

    campaigns: Sequence[CampaignState]
    hosts: Sequence[tuple[CampaignId, CampaignHost]]
    movements: Sequence[Movement]
    questions: Sequence[Question]


# Campaigns


def add_campaign(connection: Connection, campaign: CampaignState) -> None:
    connection.execute(sa.insert(campaigns).values(id=campaign.id, **_of_campaign(campaign)))


def save_campaign(connection: Connection, campaign: CampaignState) -> None:
    changed = sa.update(campaigns).where(campaigns.c.id == campaign.id)
    connection.execute(changed.values(**_of_campaign(campaign)))


def _of_campaign(campaign: CampaignState) -> dict[str, Any]:
    return {
        "name": campaign.name,
        "asked_at": campaign.asked_at,
        "ended_at": campaign.ended_at,
        "unsaid": True,
        "body": _encode(campaign),
    }


def lock_campaign(connection: Connection, campaign: CampaignId) -> CampaignState | None:
    query = sa.select(campaigns.c.body).where(campaigns.c.id == campaign).with_for_update()
    return next(map(_campaign, connection.scalars(query)), None)


def campaigns_called(connection: Connection, name: str) -> list[CampaignState]:
    """The campaign of this name or id: of several the open one, or the latest."""
    is_it = campaigns.c.name == name
    with suppress(ValueError):
        is_it |= campaigns.c.id == UUID(name)
    newest = _is_open.desc(), campaigns.c.asked_at.desc()
    query = sa.select(campaigns.c.body).where(is_it).order_by(*newest).limit(1)
    return [*map(_campaign, connection.scalars(query))]


def campaign_page(
    connection: Connection, after: CampaignId | None, limit: int, *, ended: bool
) -> list[CampaignState]:
    """A page of campaigns, the newest first."""
    query = (
        sa.select(campaigns.c.body).order_by(campaigns.c.asked_at.desc(), campaigns.c.id.desc()).limit(limit)
    )
    if not ended:
        query = query.where(_is_open)
    if after is not None:
        query = query.where(_before(campaigns, after))
    return [*map(_campaign, connection.scalars(query))]


def campaigns_since(connection: Connection, at: datetime) -> list[CampaignState]:
    query = sa.select(campaigns.c.body).where(campaigns.c.asked_at > at)
    return [*map(_campaign, connection.scalars(query))]


def take(
    connection: Connection, holder: UUID, now: datetime, until: datetime, limit: int
) -> list[CampaignState]:
    """Hold open campaigns until then: those that this keeper holds, and others that nobody holds any more. If there are more than so many,
    those whose turn was longest ago.
    """
    is_free = campaigns.c.holder.is_(None) | (campaigns.c.held_until <= now)
    found = sa.select(campaigns.c.id, campaigns.c.body).where(
        _is_open, (campaigns.c.holder == holder) | is_free
    )
    in_turn = found.order_by(campaigns.c.held_until.nulls_first(), campaigns.c.asked_at).limit(limit)
    rows = connection.execute(in_turn.with_for_update(skip_locked=True)).all()
    taken = sa.update(campaigns).where(among(connection, campaigns.c.id, [row.id for row in rows]))
    if rows:
        connection.execute(taken.values(holder=holder, held_until=until))
    return [_campaign(row.body) for row in rows]


def held_by(connection: Connection, holder: UUID) -> set[CampaignId]:
    return {
        CampaignId(each)
        for each in connection.scalars(sa.select(campaigns.c.id).where(campaigns.c.holder == holder))
    }


def let_go(connection: Connection, holder: UUID) -> None:
    """End the leases of this keeper."""
    connection.execute(sa.update(campaigns).where(campaigns.c.holder == holder).values(holder=None))


# Hosts of campaigns


def others_with(connection: Connection, wanted: Collection[ProviderId]) -> dict[ProviderId, CampaignState]:
    """Which of these hosts are in an open campaign, with that."""
    query = (
        sa.select(hosts.c.host, campaigns.c.body)
        .join(campaigns, campaigns.c.id == hosts.c.campaign)
        .where(hosts.c.is_open, among(connection, hosts.c.host, wanted))
    )
    return {ProviderId(host): _campaign(body) for host, body in connection.execute(query)}


def add_hosts(connection: Connection, campaign: CampaignId, added: Sequence[CampaignHost]) -> None:
    """Add these hosts, which no open campaign has, in the order of their turns, behind those that the campaign has."""
    last = connection.scalar(sa.select(sa.func.max(hosts.c.turn)).where(hosts.c.campaign == campaign))
    first = 0 if last is None else last + 1
    rows = [
        {
            "campaign": campaign,
            "host": each.id,
            "turn": turn,
            "lost_at": each.lost_at,
            "unsaid": True,
            **_of_host(each),
        }
        for turn, each in enumerate(added, first)
    ]
    connection.execute(sa.insert(hosts), rows)


def losses_since(
    connection: Connection, since: datetime, wanted: Collection[ProviderId]
) -> list[tuple[CampaignHost, bool]]:
    """Hosts of campaigns that were lost: those of campaigns since then (true), and all losses of these hosts."""
    is_late = campaigns.c.asked_at > since
    query = (
        sa.select(hosts.c.body, is_late)
        .join(campaigns, campaigns.c.id == hosts.c.campaign)
        .where(hosts.c.lost_at.is_not(None), is_late | among(connection, hosts.c.host, wanted))
    )
    return [(_host(body), bool(late)) for body, late in connection.execute(query)]


def save_hosts(connection: Connection, campaign: CampaignId, changed: Sequence[CampaignHost]) -> None:
    """Write these hosts. Listeners are told of those that come to another stage."""
    if changed:
        rows = [{"of": campaign, "key": each.id, "to": each.stage, **_of_host(each)} for each in changed]
        connection.execute(_SAVE_HOST, rows)


def _of_host(host: CampaignHost) -> dict[str, Any]:
    return {"stage": host.stage, "is_open": host.stage in OPEN_STAGES, "body": _encode(host)}


def hosts_at(
    connection: Connection, campaign: CampaignId, stages: Collection[HostStage], limit: int
) -> list[CampaignHost]:
    """The first hosts at these stages, in the order of their turns."""
    query = sa.select(hosts.c.body).where(hosts.c.campaign == campaign, hosts.c.stage.in_(stages))
    return [*map(_host, connection.scalars(query.order_by(hosts.c.turn).limit(limit)))]


def lock_hosts(
    connection: Connection, campaign: CampaignId, wanted: Collection[ProviderId]
) -> dict[ProviderId, CampaignHost]:
    query = sa.select(hosts.c.body).where(
        hosts.c.campaign == campaign, among(connection, hosts.c.host, wanted)
    )
    found = map(_host, connection.scalars(query.order_by(hosts.c.host).with_for_update()))
    return {each.id: each for each in found}


def host_page(
    connection: Connection, campaign: CampaignId, after: ProviderId | None, limit: int
) -> list[CampaignHost]:
    query = sa.select(hosts.c.body).where(hosts.c.campaign == campaign).order_by(hosts.c.turn).limit(limit)
    if after is not None:
        turn = (
            sa.select(hosts.c.turn)
            .where(hosts.c.campaign == campaign, hosts.c.host == after)
            .scalar_subquery()
        )
        query = query.where(hosts.c.turn > turn)
    return [*map(_host, connection.scalars(query))]


def count_stages(connection: Connection, wanted: Collection[CampaignId]) -> dict[CampaignId, dict[str, int]]:
    return _counts(connection, hosts, hosts.c.stage, wanted)


# Movements


def add_movements(connection: Connection, planned: Sequence[Movement]) -> None:
    """Add these movements. One that has ended without a failure is planned again. None is added of an instance that another campaign moves."""
    if not planned:
        return
    rows = {each.id: {"id": each.id, **_of_movement(each)} for each in planned}
    new = insert(connection, movements).on_conflict_do_nothing().returning(movements.c.id)
    added = {*connection.scalars(new, [*rows.values()])}
    known = [{**row, "key": id_, "of": row["instance"]} for id_, row in rows.items() if id_ not in added]
    if known:
        connection.execute(_PLAN_AGAIN, known)


def save_movements(connection: Connection, changed: Sequence[Movement]) -> None:
    if changed:
        connection.execute(_SAVE_MOVEMENT, [{"key": each.id, **_of_movement(each)} for each in changed])


def _of_movement(movement: Movement) -> dict[str, Any]:
    return {
        "campaign": movement.campaign,
        "instance": movement.instance,
        "cell": movement.cell,
        "host": movement.host,
        "life": movement.life,
        "is_open": movement.life in OPEN,
        "is_going": movement.life in GOING,
        "granted_at": movement.granted_at,
        "ended_at": movement.ended_at,
        "unsaid": movement.life != "planned",
        "body": _encode(movement),
    }


def lock_movements(connection: Connection, wanted: Collection[MovementId]) -> list[Movement]:
    query = (
        sa.select(movements.c.body).where(among(connection, movements.c.id, wanted)).order_by(movements.c.id)
    )
    return [*map(_movement, connection.scalars(query.with_for_update()))]


def movements_of(
    connection: Connection,
    campaign: CampaignId,
    lives: Collection[MovementLife],
    names: Collection[str] | None = None,
) -> list[Movement]:
    """The movements of a campaign with these lives; of hosts with these names alone, if any are given."""
    query = sa.select(movements.c.body).where(movements.c.campaign == campaign, movements.c.life.in_(lives))
    if names is not None:
        query = query.where(among(connection, movements.c.host, names))
    return [*map(_movement, connection.scalars(query.order_by(movements.c.id)))]


def going(connection: Connection) -> list[Movement]:
    """All movements that were granted and have not ended."""
    return [*map(_movement, connection.scalars(sa.select(movements.c.body).where(movements.c.is_going)))]


def granted_since(connection: Connection, at: datetime) -> list[Movement]:
    return [
        *map(_movement, connection.scalars(sa.select(movements.c.body).where(movements.c.granted_at > at)))
    ]


def ended_since(connection: Connection, at: datetime) -> tuple[int, datetime | None]:
    """How many movements have ended well since then, and when the first of them did."""
    done = sa.select(sa.func.count(), sa.func.min(movements.c.ended_at)).where(
        movements.c.ended_at > at, movements.c.life == "done"
    )
    count, first = connection.execute(done).one()
    return count, datetime.fromisoformat(first) if isinstance(first, str) else first


def moved_since(connection: Connection, at: datetime, wanted: Collection[InstanceId]) -> set[InstanceId]:
    """Those of these instances that were moved since then."""
    query = sa.select(movements.c.instance).where(
        movements.c.ended_at > at, movements.c.life == "done", among(connection, movements.c.instance, wanted)
    )
    return {InstanceId(each) for each in connection.scalars(query)}


def movement_page(
    connection: Connection, question: AskMovements, campaign: CampaignId | None, limit: int
) -> list[Movement]:
    query = sa.select(movements.c.body).order_by(movements.c.id).limit(limit)
    if not (question.ended or question.life):
        query = query.where(movements.c.is_open)
    asked = (
        (movements.c.campaign, campaign),
        (movements.c.instance, question.instance),
        (movements.c.host, question.host.rpartition("/")[2]),
        (movements.c.life, question.life),
    )
    for column, value in asked:
        if value:
            query = query.where(column == value)
    if question.after is not None:
        query = query.where(movements.c.id > question.after)
    return [*map(_movement, connection.scalars(query))]


def count_lives(connection: Connection, wanted: Collection[CampaignId]) -> dict[CampaignId, dict[str, int]]:
    return _counts(connection, movements, movements.c.life, wanted)


def _counts(
    connection: Connection, table: Table, column: sa.Column[str], wanted: Collection[CampaignId]
) -> dict[CampaignId, dict[str, int]]:
    query = sa.select(table.c.campaign, column, sa.func.count()).where(
        among(connection, table.c.campaign, wanted)
    )
    found: dict[CampaignId, dict[str, int]] = {}
    for campaign, name, count in connection.execute(query.group_by(table.c.campaign, column)):
        found.setdefault(CampaignId(campaign), {})[name] = count
    return found


# Budgets


def lock_ledger(connection: Connection) -> None:
    connection.execute(sa.select(ledger).with_for_update())


def all_budgets(connection: Connection) -> list[BudgetState]:
    return [*map(_budget, connection.scalars(sa.select(budgets.c.body).order_by(budgets.c.name)))]


def save_budget(connection: Connection, state: BudgetState) -> None:
    body = _encode(state)
    new = insert(connection, budgets).values(name=state.budget.name, body=body)
    connection.execute(new.on_conflict_do_update(index_elements=[budgets.c.name], set_={"body": body}))


def delete_budget(connection: Connection, name: str) -> BudgetState | None:
    gone = sa.delete(budgets).where(budgets.c.name == name).returning(budgets.c.body)
    return next(map(_budget, connection.scalars(gone)), None)


# Policies


def all_policies(connection: Connection) -> list[PolicyState]:
    found = [*map(_policy, connection.scalars(sa.select(policies.c.body)))]
    return sorted(found, key=lambda each: width_of(each.policy))


def save_policy(connection: Connection, state: PolicyState) -> None:
    body = _encode(state)
    new = insert(connection, policies).values(scope=state.policy.scope, of=state.policy.of, body=body)
    key = [policies.c.scope, policies.c.of]
    connection.execute(new.on_conflict_do_update(index_elements=key, set_={"body": body}))


def delete_policy(connection: Connection, scope: PolicyScope, of: str) -> PolicyState | None:
    gone = sa.delete(policies).where(policies.c.scope == scope, policies.c.of == of)
    return next(map(_policy, connection.scalars(gone.returning(policies.c.body))), None)


# Guests that died


def restarts_of(connection: Connection, wanted: Collection[InstanceId]) -> dict[InstanceId, Restart]:
    query = sa.select(restarts.c.body).where(among(connection, restarts.c.instance, wanted))
    return {each.instance: each for each in map(_restart, connection.scalars(query))}


def save_restarts(connection: Connection, tried: Sequence[Restart]) -> None:
    for each in tried:
        new = {"at": each.at, "body": _encode(each)}
        row = insert(connection, restarts).values(instance=each.instance, **new)
        connection.execute(row.on_conflict_do_update(index_elements=[restarts.c.instance], set_=new))


# Questions


def ask(connection: Connection, asked: Sequence[Question]) -> None:
    """Write these questions. One that was asked already stays as it is."""
    for each in asked:
        new = insert(connection, questions).values(
            id=each.id,
            campaign=each.campaign or each.id,
            host=each.host_id or each.campaign,
            asked_at=each.asked_at,
            **_of_question(each),
        )
        connection.execute(new.on_conflict_do_nothing())


def _of_question(question: Question) -> dict[str, Any]:
    return {"is_open": question.life == "open", "unsaid": True, "body": _encode(question)}


def lock_question(connection: Connection, question: QuestionId) -> Question | None:
    query = sa.select(questions.c.body).where(questions.c.id == question).with_for_update()
    return next(map(_question, connection.scalars(query)), None)


def save_question(connection: Connection, question: Question) -> None:
    connection.execute(
        sa.update(questions).where(questions.c.id == question.id).values(**_of_question(question))
    )


def open_about(connection: Connection, campaign: CampaignId, about: Collection[UUID]) -> list[Question]:
    """The open questions about these hosts of a campaign, or about all of them (the campaign's id), locked."""
    query = sa.select(questions.c.body).where(
        questions.c.campaign == campaign, questions.c.is_open, among(connection, questions.c.host, about)
    )
    return [*map(_question, connection.scalars(query.order_by(questions.c.id).with_for_update()))]


def asked_about_all(connection: Connection, of: str) -> list[CampaignId]:
    """The campaign with an open question about all hosts of this domain or cell that are held, if there is one."""
    is_about_all = questions.c.host == questions.c.campaign
    asked = sa.select(questions.c.campaign, questions.c.body).where(questions.c.is_open, is_about_all)
    return [CampaignId(id_) for id_, body in connection.execute(asked) if _question(body).host == of]


def question_page(connection: Connection, asked: AskQuestions, limit: int) -> list[Question]:
    """A page of questions, the newest first."""
    query = (
        sa.select(questions.c.body).order_by(questions.c.asked_at.desc(), questions.c.id.desc()).limit(limit)
    )
    if asked.id is not None:
        query = query.where(questions.c.id == asked.id)
    elif not asked.ended:
        query = query.where(questions.c.is_open)
    if asked.after is not None:
        query = query.where(_before(questions, asked.after))
    return [*map(_question, connection.scalars(query))]


def _before(table: Table, after: UUID) -> sa.ColumnElement[bool]:
    """Does a row come after this one, if the newest are first?"""
    place = sa.select(table.c.asked_at, table.c.id).where(table.c.id == after).subquery()
    return sa.tuple_(table.c.asked_at, table.c.id) < sa.select(place.c.asked_at, place.c.id).scalar_subquery()


def count_open(connection: Connection) -> int:
    return (
        connection.scalar(sa.select(sa.func.count()).select_from(questions).where(questions.c.is_open)) or 0
    )


# Changes to tell of, and old rows


def unsaid(connection: Connection, limit: int) -> Unsaid:
    of_hosts = connection.execute(
        sa.select(hosts.c.campaign, hosts.c.body).where(hosts.c.unsaid).limit(limit)
    )
    return Unsaid(
        _unsaid_of(connection, campaigns, _campaign, limit),
        [(CampaignId(campaign), _host(body)) for campaign, body in of_hosts],
        _unsaid_of(connection, movements, _movement, limit),
        _unsaid_of(connection, questions, _question, limit),
    )


def _unsaid_of(connection: Connection, table: Table, decode: Callable[[bytes], T], limit: int) -> list[T]:
    return [*map(decode, connection.scalars(sa.select(table.c.body).where(table.c.unsaid).limit(limit)))]


def note_said(connection: Connection, said: Unsaid) -> None:
    """Note that this was said, unless it has changed since."""
    for table, key, told in (
        *((campaigns, (campaigns.c.id == each.id,), each) for each in said.campaigns),
        *(
            (hosts, (hosts.c.campaign == campaign, hosts.c.host == each.id), each)
            for campaign, each in said.hosts
        ),
        *((movements, (movements.c.id == each.id,), each) for each in said.movements),
        *((questions, (questions.c.id == each.id,), each) for each in said.questions),
    ):
        connection.execute(sa.update(table).where(*key, table.c.body == _encode(told)).values(unsaid=False))


def forget(connection: Connection, before: datetime, limit: int) -> int:
    """Delete campaigns that have ended before then, with their hosts and movements, and what is as old without a campaign. Returns how
    many campaigns.
    """
    old = sa.select(campaigns.c.id).where(campaigns.c.ended_at < before).limit(limit)
    gone = [*connection.scalars(old)]
    for table, column in (
        (questions, questions.c.campaign),
        (movements, movements.c.campaign),
        (hosts, hosts.c.campaign),
        (campaigns, campaigns.c.id),
    ):
        connection.execute(sa.delete(table).where(among(connection, column, gone)))
    connection.execute(sa.delete(restarts).where(restarts.c.at < before))
    is_of_none = sa.and_(questions.c.campaign == questions.c.id, questions.c.asked_at < before)
    connection.execute(sa.delete(questions).where(is_of_none, ~questions.c.is_open))
    return len(gone)


class KeeperStore:
    """The database. The functions of this file run in its transactions: `transaction.run(lock_ledger)`; or alone, if they only read."""

    def __init__(self, url: str | Database, *, settings: DatabaseSettings | None = None) -> None:
        self._database = open_database(url, settings=settings)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A new transaction. It commits at the end of its context, and rolls back on any exception."""
        return self._database.writing()

    async def read(
        self, query: Callable[Concatenate[Connection, P], T], *values: P.args, **named: P.kwargs
    ) -> T:
        return await read_once(self._database, query, *values, **named)

    async def close(self) -> None:
        await self._database.close()


def counted(
    campaign: CampaignState,
    stages: Mapping[CampaignId, Mapping[str, int]],
    lives: Mapping[CampaignId, Mapping[str, int]],
) -> CampaignState:
    """The campaign with the counts of its hosts and movements."""
    return msgspec.structs.replace(
        campaign, hosts=dict(stages.get(campaign.id, {})), movements=dict(lives.get(campaign.id, {}))
    )
