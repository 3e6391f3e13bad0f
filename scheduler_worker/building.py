"""A batch of build requests from validation to their hosts: accept, find hosts, decide.

The request's row is the arbiter. It is written before anything is claimed, and locked again when the verdicts are in:
who finds that it was decided otherwise meanwhile lets go of what it got.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from bus.handling import Answer, Received, Said, Tell
from bus.message import Message
from bus.messages.build import (
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    InstanceId,
    NoValidHost,
    RequestId,
)
from bus.messages.cell import PlaceInCell
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.claiming import Claimer
from scheduler_worker.core.requests import Wish, instances_of, read_request
from scheduler_worker.instances import (
    InstanceRow,
    accepted,
    deleted,
    failed,
    instance_id_of,
    placed,
    released,
)
from scheduler_worker.late import LateTransaction, kept_messages
from scheduler_worker.searching import Holds, Over, Refused, Search
from scheduler_worker.store import (
    Acceptance,
    InstancesTaken,
    Known,
    NewRequest,
    OtherContent,
    SchedulerStore,
)

_canonical = msgspec.json.Encoder(order="deterministic").encode


class Sound(Struct, frozen=True, eq=False):
    """A request that makes sense."""

    ask: Received[BuildInstance]
    id: RequestId
    wish: Wish
    digest: bytes


class Builder:
    def __init__(
        self,
        store: SchedulerStore,
        claimer: Claimer,
        vocabulary: Vocabulary,
        clock: Callable[[], datetime],
        horizon: timedelta,
    ) -> None:
        self._store = store
        self._claimer = claimer
        self._vocabulary = vocabulary
        self._clock = clock
        self._horizon = horizon

    async def on_builds(self, asks: Sequence[Received[BuildInstance]], late: LateTransaction) -> list[Said]:
        said: list[Said] = []
        sound: list[Sound] = []
        for ask in asks:
            read = self._read(ask)
            if isinstance(read, Sound):
                sound.append(read)
            else:
                said += rejected(ask, read)
        known = await self._accept(sound)
        searches: dict[InstanceId, Search] = {}
        for one in sound:
            judged = known[one.id]
            if isinstance(judged, BuildRejected) or judged.digest != one.digest:
                said += rejected(one.ask, judged if isinstance(judged, BuildRejected) else _other(one.ask))
                continue
            said += _accepted(one, judged.rows)
            for row in judged.rows:
                searches.setdefault(row.id, Search(row, one.ask.message, one.wish))
        await self._claimer.find_hosts([one for one in searches.values() if one.row.is_open])
        causes = {row.id: one.ask for one in sound for row in _rows_of(known[one.id])}
        return [*said, *await self._decide(searches, causes, late)]

    def _read(self, ask: Received[BuildInstance]) -> "Sound | BuildRejected":
        build = ask.message
        if ask.sent_at is not None and self._clock() - ask.sent_at > self._horizon:
            return _too_old(ask, self._horizon)
        wish = read_request(build, self._vocabulary)
        if isinstance(wish, BuildRejected):
            return wish
        assert build.request_id is not None, "a request without an id is rejected"
        return Sound(ask, build.request_id, wish, hashlib.sha256(_canonical(build)).digest())

    async def _accept(self, sound: Sequence[Sound]) -> dict[RequestId, "_Judged | BuildRejected"]:
        """Committed before anything is claimed: what is asked of placement has a row that answers for it."""
        now = self._clock()
        new = {one.id: NewRequest(one.id, one.digest, _rows(one.ask.message, now)) for one in reversed(sound)}
        if not new:
            return {}
        async with self._store.transaction() as transaction:
            acceptances = await transaction.accept(list(new.values()))
        asks = {one.id: one.ask for one in sound}
        return {
            request.id: _judged(asks[request.id], request, acceptance)
            for request, acceptance in zip(new.values(), acceptances, strict=True)
        }

    async def _decide(
        self,
        searches: dict[InstanceId, Search],
        causes: dict[InstanceId, Received[BuildInstance]],
        late: LateTransaction,
    ) -> list[Said]:
        """Compare and set: what is still open becomes what was found, and the rest says again what it said."""
        said: list[Said] = []
        found = {id_: one for id_, one in searches.items() if one.outcome is not None}
        if found:
            transaction = await late.begun()
            rows = await transaction.lock(sorted(found, key=lambda id_: id_.int))
            changed = []
            for id_, one in found.items():
                row = rows[id_]
                decided = _decided(row, one, self._clock())
                if decided is not None:
                    changed.append(decided)
                    one.row = decided
                else:
                    one.row = row
                    if isinstance(one.outcome, Holds) and row.order is None:
                        said.append(Tell(released(row), causes[id_]))
            await transaction.save(changed)
        for id_, one in searches.items():
            said += [Tell(message, causes[id_], kept) for kept, message in kept_messages(one.row)]
        return said


class _Judged(Struct, frozen=True):
    digest: bytes
    rows: tuple[InstanceRow, ...]


def _rows(build: BuildInstance, now: datetime) -> tuple[InstanceRow, ...]:
    ends_by = now + timedelta(seconds=build.deadline_s)
    return accepted(build, instances_of(build, instance_id_of), now, ends_by)


def _rows_of(judged: "_Judged | BuildRejected") -> tuple[InstanceRow, ...]:
    return () if isinstance(judged, BuildRejected) else judged.rows


def _judged(
    ask: Received[BuildInstance], request: NewRequest, acceptance: Acceptance
) -> "_Judged | BuildRejected":
    match acceptance:
        case Known(rows):
            return _Judged(request.digest, rows)
        case OtherContent():
            return _other(ask)
        case InstancesTaken(instances):
            return BuildRejected(
                request_id=request.id,
                field="instance_ids",
                value=", ".join(map(str, instances)),
                reason="duplicate id: they belong to another request",
            )


def _too_old(ask: Received[BuildInstance], horizon: timedelta) -> BuildRejected:
    return BuildRejected(
        request_id=ask.message.request_id,
        field="sent_at",
        value=str(ask.sent_at),
        reason=f"too old: what was sent more than {horizon.total_seconds():.0f} s ago may have been built and deleted "
        "since, and nobody would know",
    )


def _other(ask: Received[BuildInstance]) -> BuildRejected:
    return BuildRejected(
        request_id=ask.message.request_id,
        field="request_id",
        value=str(ask.message.request_id),
        reason="duplicate id: a request with this id and other content was taken before",
    )


def rejected(ask: Received[Message], why: BuildRejected) -> tuple[Said, ...]:
    return (Answer(ask, why), Tell(why, ask))


def _accepted(one: Sound, rows: Iterable[InstanceRow]) -> tuple[Said, ...]:
    """To whoever asked, and to whoever listens: a client with a plain AMQP library waits for no answer."""
    told = BuildAccepted(request_id=one.id, instances=tuple(row.id for row in rows))
    return (Answer(one.ask, told), Tell(told, one.ask))


def _decided(row: InstanceRow, one: Search, now: datetime) -> InstanceRow | None:
    match one.outcome:
        case Holds() as holds:
            return placed(
                row, _order(row, one.build, holds), holds.choice.name, now, refusals=tuple(one.refusals)
            )
        case NoValidHost() as nowhere:
            return failed(row, now, reason="no valid host", no_valid_host=nowhere)
        case Refused(reason):
            return failed(row, now, reason=reason)
        case Over(reason):
            return deleted(row, now, reason) if row.is_open else None
        case None:
            return None


def _order(row: InstanceRow, build: BuildInstance, holds: Holds) -> PlaceInCell:
    assert build.flavor is not None, "a request without a flavor is rejected"
    return PlaceInCell(
        cell=holds.cell,
        instance=row.id,
        request_id=row.told.request_id,
        attempt=holds.attempt,
        issued_at=row.issued_at,
        ends_by=row.ends_by,
        flavor=build.flavor,
        chosen=holds.choice,
        alternates=holds.alternates,
        name=row.told.name,
        project=build.project,
        user=build.user,
        image_properties=build.image_properties,
        group=build.group,
    )
