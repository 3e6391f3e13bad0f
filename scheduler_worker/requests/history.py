"""Questions about what was ordered for instances, and about moves."""

from collections.abc import Sequence

from bus.messages.moves import AskHistory, AskMoves, HistoryFound, MovePlace, MovesFound
from bus.workers.handling import Answer, Handlers, Reading, Received, Said
from scheduler_worker.core.instances.history import boot_of, with_end
from scheduler_worker.store import ChangeQuery, InstanceQuery, SchedulerStore


def history_questions(store: SchedulerStore) -> Handlers:
    async def on_histories(asks: Sequence[Received[AskHistory]]) -> list[Said]:
        return [Answer(ask, await _history(store, ask.message)) for ask in asks]

    async def on_moves(asks: Sequence[Received[AskMoves]]) -> list[Said]:
        return [Answer(ask, await _moves(store, ask.message)) for ask in asks]

    return {AskHistory: Reading(on_histories), AskMoves: Reading(on_moves)}


async def _history(store: SchedulerStore, question: AskHistory) -> HistoryFound:
    query = InstanceQuery(instances=(question.instance,), project=question.project, limit=1)
    rows = await store.instances(query)
    if not rows:
        return HistoryFound(instance=None)
    (row,) = rows
    found = await store.changes(
        ChangeQuery(instance=question.instance, after=question.after, ended=True, limit=question.limit + 1)
    )
    page = [with_end(change, row) for change in found[: question.limit]]
    return HistoryFound(
        instance=row.told,
        changes=(*(() if question.after else (boot_of(row),)), *page),
        next=page[-1].number if len(found) > question.limit else 0,
    )


async def _moves(store: SchedulerStore, question: AskMoves) -> MovesFound:
    found = await store.changes(
        ChangeQuery(host=question.host, ended=question.ended, behind=question.after, limit=question.limit + 1)
    )
    page = found[: question.limit]
    return MovesFound(
        moves=tuple(page),
        next=MovePlace(page[-1].asked_at, page[-1].instance) if len(found) > question.limit else None,
    )
