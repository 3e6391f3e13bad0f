"""Requests written down, each once.

Two workers that accept the same request meet at its first instance, whatever instances they name, and two requests that
name the same instance at that. In the usual case nobody is there, and one statement is all.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from bus.errors import Transient
from bus.messages.build import InstanceId
from scheduler_worker.core.instances.lifecycle import adopted
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.store import Acceptance, InstancesTaken, Known, NewRequest, OtherContent
from scheduler_worker.store_sql.rows import Values, new_values, row_of, standing_of


class Rows(Protocol):
    async def add(self, rows: Sequence[Values]) -> int: ...

    async def lock_standing(self, ids: Sequence[UUID], requests: Sequence[UUID]) -> Sequence[Values]: ...

    async def forget(self, ids: Sequence[UUID]) -> int: ...


async def accept(rows: Rows, new: Sequence[NewRequest]) -> list[Acceptance]:
    """All are inserted in the order of their ids, so that nobody waits for who waits for him."""
    added = [each for request in new for each in _values_of(request, request.rows)]
    if await rows.add(sorted(added, key=_by_id)) == len(added):
        return [Known(request.rows) for request in new]
    standing = _Standing(
        await rows.lock_standing([each[0] for each in added], [request.id for request in new])
    )
    judged = [standing.judged(request) for request in new]
    refused = [request for request, each in zip(new, judged, strict=True) if not isinstance(each, Known)]
    if withdrawn := [id_ for request in refused for id_ in standing.of(request)]:
        await rows.forget(withdrawn)
    await _adopt(rows, standing, new, judged)
    return judged


class _Standing:
    """What is there once ours are inserted: a refused request's, too."""

    def __init__(self, read: Iterable[Values]) -> None:
        self.rows: dict[UUID, InstanceRow] = {}
        self._of: dict[tuple[UUID | None, bytes], list[InstanceId]] = {}
        self._digests: dict[UUID | None, set[bytes]] = {}
        for each in read:
            row = row_of(each)
            request, digest = standing_of(each)
            self.rows[row.id] = row
            self._of.setdefault((request, digest), []).append(row.id)
            self._digests.setdefault(request, set()).add(digest)

    def of(self, request: NewRequest) -> Sequence[InstanceId]:
        """Its own. Of a refused one these are new: had it stood before, it would be known now."""
        return self._of.get((request.id, request.digest), ())

    def judged(self, request: NewRequest) -> Acceptance:
        if self._digests.get(request.id, set()) - {request.digest}:
            return OtherContent()
        if any(row.id not in self.rows for row in request.rows):
            raise Transient("a request was forgotten in the moment it came again")
        mine = [(row, self.rows[row.id]) for row in request.rows]
        if taken := tuple(
            there.id for _, there in mine if there.told.request_id not in (request.id, NO_REQUEST)
        ):
            return InstancesTaken(taken)
        return Known(
            tuple(
                adopted(there, row) if there.told.request_id == NO_REQUEST else there for row, there in mine
            )
        )


async def _adopt(
    rows: Rows, standing: _Standing, new: Sequence[NewRequest], judged: Sequence[Acceptance]
) -> None:
    """Who was deleted before its request was seen gets a row of that request instead."""
    instead = [
        values
        for request, each in zip(new, judged, strict=True)
        if isinstance(each, Known)
        for row, values in zip(each.rows, _values_of(request, each.rows), strict=True)
        if standing.rows[row.id] is not row
    ]
    if instead:
        await rows.forget([each[0] for each in instead])
        await rows.add(instead)


def _values_of(request: NewRequest, rows: Sequence[InstanceRow]) -> list[Values]:
    return [new_values(row, place, request.digest) for place, row in enumerate(rows)]


def _by_id(values: Values) -> int:
    id_: UUID = values[0]
    return id_.int
