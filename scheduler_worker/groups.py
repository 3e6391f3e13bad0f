"""Server groups: orders to create and delete them, and questions about them. Placement checks each claim against their members."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.projects import AskGroups, CreateGroup, DeleteGroup, GroupsFound, GroupState, PlacedMember
from bus.workers.handlers import Answer, Handlers, ReadOnly, Received, Said
from engine.inventories import ServerGroup
from engine.picture.picture import Picture
from engine.places import PLACE_LEVELS_MAX
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.catalog import in_turn
from scheduler_worker.requests.reading import rejection
from scheduler_worker.store_sql import GroupQuery, KnownGroup, SchedulerStore, SchedulerTransaction

MEMBERS_MAX = 1000


def group_order_handlers(clock: Callable[[], datetime], records_max: int) -> Handlers:
    """A project may have `records_max` groups, with those that were deleted and are not forgotten yet; 0: any number."""

    async def create(order: CreateGroup, transaction: OutboxTransaction) -> Message:
        store = await transaction.begun()
        wanted = KnownGroup(
            definition=ServerGroup(
                id=order.id, policy=order.policy, max_per_host=order.max_per_host, rules=order.rules
            ),
            name=order.name,
            project=order.project,
        )
        wrong = _wrong_group(order) or await _too_many(order, store, records_max)
        if wrong is not None:
            return wrong
        known = await store.create_group(wanted)
        return GroupsFound(groups=(_state(wanted),)) if known == wanted else _taken_group(order, known)

    async def delete(order: DeleteGroup, transaction: OutboxTransaction) -> Message:
        gone = await (await transaction.begun()).delete_group(order.id, order.project, clock())
        return GroupsFound(groups=(_state(gone),) if gone else ())

    return {
        CreateGroup: in_turn(create, lambda order: order.id),
        DeleteGroup: in_turn(delete, lambda order: order.id),
    }


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
        rules=definition.rules,
        name=group.name,
        project=group.project,
    )


def _wrong_group(order: CreateGroup) -> BuildRejected | None:
    if order.max_per_host > 1 and order.policy != "anti-affinity":
        return rejection(
            "max_per_host",
            order.max_per_host,
            f"only anti-affinity reads it, and the policy is {order.policy}",
        )
    # All members are in one domain of this level, and so of each smaller level, too.
    together = max([rule.level for rule in order.rules if rule.policy == "affinity"], default=0)
    where = f"in one domain of level {together}"
    if order.policy == "affinity":
        together, where = PLACE_LEVELS_MAX, "on one host"
    for number, rule in enumerate(order.rules):
        if rule.policy == "anti-affinity" and rule.level <= together:
            return rejection(
                f"rules[{number}].policy",
                rule.policy,
                f"all members are {where}, so one domain of level {rule.level} has them all",
            )
        if rule.max_members > 1 and rule.policy != "anti-affinity":
            return rejection(
                f"rules[{number}].max_members",
                rule.max_members,
                f"only anti-affinity reads it, and the policy is {rule.policy}",
            )
        if any((one.level, one.policy) == (rule.level, rule.policy) for one in order.rules[:number]):
            return rejection(
                f"rules[{number}].level",
                rule.level,
                f"another rule is {rule.policy} in domains of this level, too",
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


def _taken_group(order: CreateGroup, known: KnownGroup | None) -> BuildRejected:
    if known is None:
        return rejection("id", order.id, "a group of this id was deleted: choose another id")
    if known.project != order.project:
        # This sender may not learn how another project's group is defined.
        return rejection("id", order.id, "duplicate id: it belongs to another group")
    return rejection(
        "id",
        order.id,
        f"duplicate id: it belongs to group {known.name!r}, which is {known.definition.policy} with at most "
        f"{known.definition.max_per_host} on a host, and has {len(known.definition.rules)} rules for domains",
    )
