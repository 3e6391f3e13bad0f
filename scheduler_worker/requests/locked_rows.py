"""Steps of instances: lock the rows, take one step after the other, write the rows that have changed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from msgspec import structs

from bus.messages.adoption import GiveBackInstance
from bus.messages.build import BuildRejected, DeleteInstance, InstanceId, InstancesFound, RebuildInstance
from bus.messages.moves import EndMove, MoveInstance
from bus.workers.handling import Answer, Received, Said
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import rejected
from scheduler_worker.store import SchedulerTransaction

Order = TypeVar("Order", DeleteInstance, RebuildInstance, MoveInstance, EndMove, GiveBackInstance)
# The row after a step; None if it stays as it is.
Step = Callable[[InstanceRow | None], InstanceRow | None]
# The row after an order, or why it is refused; the same row if the order was followed before.
OrderStep = Callable[[InstanceRow | None], InstanceRow | BuildRejected]


class Ordered(NamedTuple):
    """A change that is to be applied to an instance's row, and the user who ordered it (`by`: empty if an event of a cell
    causes it).
    """

    instance: InstanceId
    step: Step
    by: str = ""


async def take_steps(store: SchedulerTransaction, steps: Sequence[Ordered]) -> dict[InstanceId, InstanceRow]:
    """Lock the rows, apply each step to its row, and save those that changed. Returns the rows as they are then."""
    rows = dict(await store.lock(sorted({each.instance for each in steps})))
    changed: dict[InstanceId, InstanceRow] = {}
    for id_, step, by in steps:
        before = rows.get(id_)
        row = step(before)
        if row is not None and row is not before:
            if changes := changes_between(before, row, by):
                row = structs.replace(row, history=(*row.history, *changes))
            changed[id_] = rows[id_] = row
    await store.save(list(changed.values()))
    return rows


async def tell_all(
    rows: dict[InstanceId, InstanceRow],
    asks: Sequence[Received[Order]],
    transaction: OutboxTransaction,
    more: Mapping[InstanceId, Received[Order]] = MappingProxyType({}),
) -> list[Said]:
    """Have the messages of these rows sent, each as a consequence of the order that changed the row. `more` has the orders
    that changed rows which they do not name.
    """
    await transaction.note(rows.values())
    causes = {**more, **{ask.message.instance: ask for ask in asks}}
    return [tell for id_, row in rows.items() for tell in transaction.tells(row, causes[id_])]


async def follow_several(
    asks: Sequence[Received[Order]],
    steps_of: Sequence[Sequence[tuple[InstanceId, OrderStep]]],
    transaction: OutboxTransaction,
    *,
    are_whole: Sequence[bool],
) -> list[Said]:
    """Follow these orders, each by a step for each of its instances, its own instance first. An order that is whole is
    followed for all of its instances, or for none if one step is refused. Of another one, only the step of its own instance
    counts for the answer.
    """
    verdicts: list[dict[InstanceId, InstanceRow | BuildRejected]] = [{} for _ in asks]
    steps = []
    for ask, each, verdict, is_whole in zip(asks, steps_of, verdicts, are_whole, strict=True):
        steps += [Ordered(id_, partial(_look, verdict, id_, order_step)) for id_, order_step in each]
        steps += [Ordered(id_, partial(_take, verdict, id_, is_whole=is_whole), ask.by) for id_, _ in each]
    rows = await take_steps(await transaction.begun(), steps)
    causes = {id_: ask for ask, verdict in zip(asks, verdicts, strict=True) for id_ in verdict}
    said = await tell_all(rows, asks, transaction, causes)
    for ask, verdict, is_whole in zip(asks, verdicts, are_whole, strict=True):
        refusal = next(
            (
                each
                for id_, each in verdict.items()
                if isinstance(each, BuildRejected) and (is_whole or id_ == ask.message.instance)
            ),
            None,
        )
        if refusal is not None:
            said += rejected(ask, refusal)
            continue
        told = [rows[id_].told for id_, each in verdict.items() if isinstance(each, InstanceRow)]
        said.append(Answer(ask, InstancesFound(instances=tuple(told))))
    return said


def _look(
    verdict: dict[InstanceId, InstanceRow | BuildRejected],
    id_: InstanceId,
    order_step: OrderStep,
    row: InstanceRow | None,
) -> None:
    verdict[id_] = order_step(row)


def _take(
    verdict: Mapping[InstanceId, InstanceRow | BuildRejected],
    id_: InstanceId,
    _row: InstanceRow | None,
    *,
    is_whole: bool,
) -> InstanceRow | None:
    if is_whole and any(isinstance(each, BuildRejected) for each in verdict.values()):
        return None
    found = verdict[id_]
    return found if isinstance(found, InstanceRow) else None


async def follow(
    asks: Sequence[Received[Order]], order_steps: Sequence[OrderStep], transaction: OutboxTransaction
) -> list[Said]:
    """Follow these orders, each by its step. Returns the messages of the rows, and the answer to each order."""
    verdicts: list[InstanceRow | BuildRejected] = []

    def step(row: InstanceRow | None, order_step: OrderStep) -> InstanceRow | None:
        verdicts.append(verdict := order_step(row))
        return verdict if isinstance(verdict, InstanceRow) else None

    steps = [
        Ordered(ask.message.instance, partial(step, order_step=order_step), ask.by)
        for ask, order_step in zip(asks, order_steps, strict=True)
    ]
    rows = await take_steps(await transaction.begun(), steps)
    said = await tell_all(rows, asks, transaction)
    for ask, verdict in zip(asks, verdicts, strict=True):
        if isinstance(verdict, BuildRejected):
            said += rejected(ask, verdict)
        else:
            said.append(Answer(ask, InstancesFound(instances=(rows[verdict.id].told,))))
    return said
