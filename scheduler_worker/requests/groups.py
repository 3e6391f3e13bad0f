"""Server groups: orders to create and delete them, and questions about them."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.stored_names import (
    AskGroups,
    CreateGroup,
    DeleteGroup,
    GroupsFound,
    GroupState,
    PlacedMember,
)
from bus.workers.handling import Answer, Bury, Handlers, ReadOnly, Received, Said
from engine.inventories import ServerGroup
from engine.picture.picture import Picture
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.reading import rejection
from scheduler_worker.store import GroupQuery, KnownGroup
from scheduler_worker.store_sql import SchedulerStore, SchedulerTransaction

MEMBERS_MAX = 1000


def group_order_handlers(clock: Callable[[], datetime], records_max: int) -> Handlers:
    """A project may have `records_max` groups, with those that were deleted and are not forgotten yet; 0: any number."""

    async def on_create(asks: Sequence[Received[CreateGroup]], transaction: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        store = await transaction.begun()
        # All workers write the rows of several orders in one order.
        for ask in sorted(asks, key=lambda ask: ask.message.id):
            order, wrong = ask.message, _wrong(ask.message)
            wanted = KnownGroup(
                definition=ServerGroup(id=order.id, policy=order.policy, max_per_host=order.max_per_host),
                name=order.name,
                project=order.project,
            )
            if wrong is None:
                wrong = await _too_many(order, store, records_max)
            if wrong is None:
                known = await store.create_group(wanted)
                wrong = None if known == wanted else _taken(ask.message, known)
            if wrong is None:
                said.append(Answer(ask, GroupsFound(groups=(_state(wanted),))))
            elif ask.reply_to:
                said.append(Answer(ask, wrong))
            else:
                # No one waits for an answer, and an invalid order must not vanish.
                said.append(Bury(ask, f"{wrong.field} is {wrong.value}: {wrong.reason}"))
        return said

    async def on_delete(asks: Sequence[Received[DeleteGroup]], transaction: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        for ask in sorted(asks, key=lambda ask: ask.message.id):
            order = ask.message
            gone = await (await transaction.begun()).delete_group(order.id, order.project, clock())
            said.append(Answer(ask, GroupsFound(groups=(_state(gone),) if gone else ())))
        return said

    return {CreateGroup: on_create, DeleteGroup: on_delete}


def group_questions(
    store: SchedulerStore, picture: Picture, catch_up: Callable[[], Awaitable[None]]
) -> Handlers:
    async def on_ask(asks: Sequence[Received[AskGroups]]) -> list[Said]:
        # So an answer has each member that was placed before the question.
        await catch_up()
        return [Answer(ask, await _found(store, picture, ask.message)) for ask in asks]

    return {AskGroups: ReadOnly(on_ask)}


async def _found(store: SchedulerStore, picture: Picture, question: AskGroups) -> GroupsFound:
    query = GroupQuery(
        ids=None if question.id is None else (question.id,),
        after=question.after,
        project=question.project,
        name=question.name,
        id_prefix=question.id_prefix,
        # One more than asked tells whether there is another page.
        limit=question.limit + 1,
    )
    groups = await store.groups(query)
    page = groups[: question.limit]
    return GroupsFound(
        groups=tuple(_with_members(each, picture, is_alone=question.id is not None) for each in page),
        next=page[-1].definition.id if len(groups) > question.limit else None,
    )


def _with_members(group: KnownGroup, picture: Picture, *, is_alone: bool) -> GroupState:
    members = sorted(picture.groups.of_group(group.definition.id), key=lambda each: each.consumer)
    shown = members[:MEMBERS_MAX] if is_alone else ()
    names = picture.columns.names
    return structs.replace(
        _state(group),
        size=len(members),
        members=tuple(
            PlacedMember(
                consumer=each.consumer,
                host=str(each.host) if (row := picture.row_of(each.host)) < 0 else names[row],
            )
            for each in shown
        ),
    )


def _state(group: KnownGroup) -> GroupState:
    definition = group.definition
    return GroupState(
        id=definition.id,
        policy=definition.policy,
        max_per_host=definition.max_per_host,
        name=group.name,
        project=group.project,
    )


def _wrong(order: CreateGroup) -> BuildRejected | None:
    if order.max_per_host > 1 and order.policy != "anti-affinity":
        return rejection(
            "max_per_host",
            order.max_per_host,
            f"only anti-affinity reads it, and the policy is {order.policy}",
        )
    return None


async def _too_many(
    order: CreateGroup, store: SchedulerTransaction, records_max: int
) -> BuildRejected | None:
    if not (records_max and order.project):
        return None
    there = await store.count_groups(order.project, order.id, records_max)
    if there < records_max:
        return None
    return rejection(
        "project",
        order.project,
        f"project {order.project} has {there} server groups, with those that were deleted and are not forgotten yet, as many as "
        "scheduler.project_records_max allows: use one that is there, or delete some and wait until they are forgotten",
    )


def _taken(order: CreateGroup, known: KnownGroup | None) -> BuildRejected:
    if known is None:
        return rejection("id", order.id, "a group of this id was deleted: choose another id")
    if known.project != order.project:
        # This sender may not learn how another project's group is defined.
        return rejection("id", order.id, "duplicate id: it belongs to another group")
    return rejection(
        "id",
        order.id,
        f"duplicate id: it belongs to group {known.name!r}, which is {known.definition.policy} with at most "
        f"{known.definition.max_per_host} on a host",
    )
