"""The rows of aggregates, read at start and now and then: an event about one may be lost."""

from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.store import SchedulerStore


async def read_aggregates(store: SchedulerStore, picture: Picture) -> None:
    """On return, the picture has the metadata of every aggregate as it was written before the call, or later."""
    known = picture.aggregates.all()
    rows = await store.aggregates()
    picture.put_aggregates(rows)
    there = {row.id for row in rows}
    for each in known:
        if each.id not in there:
            picture.remove_aggregate(each)
