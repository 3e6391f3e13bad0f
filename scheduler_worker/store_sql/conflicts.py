"""Which new requests are accepted, if rows of some of their instances are there already: each request is written once.

Two workers that accept the same request conflict at the row of its first instance, since a request id and a place in
the request are unique together. Two requests that name the same instance conflict at the row of that instance. Usually
nothing conflicts, and `SqlSchedulerTransaction.accept` is done after one insert.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID  # noqa: TC003 - imported like every other type

from bus.errors import Transient
from bus.messages.build import InstanceId
from bus.sql import Transaction, Values
from scheduler_worker.core.instances.lifecycle import adopted
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.store import Acceptance, InstancesTaken, Known, NewRequest, OtherContent
from scheduler_worker.store_sql import rare_statements
from scheduler_worker.store_sql.rows import ADD, LOCK_WITH_ORDERS, request_of, row_of, values_of_new


async def judge_conflicts(transaction: Transaction, new: Sequence[NewRequest]) -> list[Acceptance]:
    """Whether each of these requests is accepted. All of their rows that did not conflict have just been inserted; those
    of requests that are refused are deleted again.
    """
    others = await transaction.run(rare_statements.ids_of_requests, [request.id for request in new])
    own = [row.id for request in new for row in request.rows]
    stored = _StoredRows(await LOCK_WITH_ORDERS.fetch(transaction, {*own, *others}))
    judged = [stored.judged(request) for request in new]
    refused = [request for request, each in zip(new, judged, strict=True) if not isinstance(each, Known)]
    if withdrawn := [id_ for request in refused for id_ in stored.of(request)]:
        await transaction.run(rare_statements.forget, withdrawn)
    await _adopt(transaction, stored, new, judged)
    return judged


class _StoredRows:
    """The rows in the database after the insert, those of refused requests included."""

    def __init__(self, read: Iterable[Values]) -> None:
        self.rows: dict[UUID, InstanceRow] = {}
        self._of: dict[tuple[UUID | None, bytes], list[InstanceId]] = {}
        self._digests: dict[UUID | None, set[bytes]] = {}
        for each in read:
            row = row_of(each)
            request, digest = request_of(each)
            self.rows[row.id] = row
            self._of.setdefault((request, digest), []).append(row.id)
            self._digests.setdefault(request, set()).add(digest)

    def of(self, request: NewRequest) -> Sequence[InstanceId]:
        """The ids of the stored rows that have the id and the digest of this request.

        If the request is refused, the present transaction has inserted them all, and they must be deleted again: a
        request that had been there before would be `Known`.
        """
        return self._of.get((request.id, request.digest), ())

    def judged(self, request: NewRequest) -> Acceptance:
        if self._digests.get(request.id, set()) - {request.digest}:
            return OtherContent()
        if any(row.id not in self.rows for row in request.rows):
            raise Transient("a repeated request was pruned at the same moment")
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
    transaction: Transaction, stored: _StoredRows, new: Sequence[NewRequest], judged: Sequence[Acceptance]
) -> None:
    """Write the rows of accepted requests over the rows of their instances that a delete had left before the request
    was seen.
    """
    instead = [
        values
        for request, each in zip(new, judged, strict=True)
        if isinstance(each, Known)
        for row, values in zip(each.rows, values_of_new(request.digest, each.rows), strict=True)
        if stored.rows[row.id] is not row
    ]
    if instead:
        await transaction.run(rare_statements.forget, [each[0] for each in instead])
        await ADD.change(transaction, instead)
