"""A batch of build requests from validation to their hosts: accept, find hosts, decide.

The request's rows are the arbiter. They are written over when the verdicts are in, if they are still open: who finds that
it was decided otherwise meanwhile lets go of what it got.

A row costs as much as everything else that is done here. So of many requests that come for the first time, those that
get the host they ask for at once are written once, as placed: until then the message itself, which is not acknowledged,
answers for what was claimed. Whoever has to wait, comes alone or comes again (it may be on its way to the dead letters)
is written first, and so ends by its deadline whatever happens. Where even that fails for good, and the request goes to
the dead letters, it ends before: what was claimed for it when it came first would stay claimed for ever.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, structs

from bus.handling import Handler, Received, Said, Tell
from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    InstanceId,
    NoValidHost,
    RequestId,
)
from bus.messages.cell import PlaceInCell
from bus.messages.hosts import NODE
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.claiming.searching import Holds, Over, Refused, Search
from scheduler_worker.core.instances.lifecycle import (
    InstanceRow,
    accepted,
    deleted,
    failed,
    placed,
    release_of,
    released,
)
from scheduler_worker.core.requests import Wish, instances_of, read_request
from scheduler_worker.outbox.lazy_transaction import LateTransaction, Names
from scheduler_worker.requests.answering import SENT_AT, other_content, rejected, taken, too_old
from scheduler_worker.requests.instance_ids import instance_id_of
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import (
    Acceptance,
    InstancesTaken,
    Known,
    NewRequest,
    OtherContent,
    SchedulerStore,
)

WISHES_MAX = 1000
BURIED = "its request went to the dead letters before it was written down: ask again, by another id"

_canonical = msgspec.json.Encoder(order="deterministic").encode


class Sound(Struct, frozen=True, eq=False):
    """A request that makes sense. The digest is of all that it says beside its id."""

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
        settings: SchedulerSettings,
    ) -> None:
        self._store = store
        self._claimer = claimer
        self._vocabulary = vocabulary
        self._clock = clock
        self._settings = settings
        self._horizon = settings.horizon
        # What requests ask for by what they say, and the digest of that: most say the same as one before.
        self._wishes: dict[bytes, tuple[Wish, bytes]] = {}

    async def on_builds(self, asks: Sequence[Received[BuildInstance]], late: LateTransaction) -> list[Said]:
        said: list[Said] = []
        sound: list[Sound] = []
        came_back_too_late = []
        now = self._clock()
        for ask in asks:
            read = self._read(ask, now)
            if isinstance(read, Sound):
                sound.append(read)
                continue
            said += rejected(ask, read)
            if read.field == SENT_AT and ask.attempts:
                # An earlier try may have claimed for it, and died before it wrote that down.
                came_back_too_late.append(ask)
        builds = _builds(sound, now, self._settings)
        if len(asks) > 1 and not any(ask.attempts for ask in asks):
            await self._claimer.find_at_once([one for build in builds for one in build.searches])
        found = [build for build in builds if build.is_found]
        searching = [build for build in builds if not build.is_found]
        await self._accept(searching)
        await self._claimer.find_hosts([one for build in searching for one in build.still_open])
        await self._write_at_once(found, late)
        await self._decide(builds, late)
        names = await late.note(one.row for build in builds for one in build.taken)
        for build in builds:
            said += await self._let_go(build, late)
            for each in build.asks:
                said += _answered(each, build, names)
        for ask in came_back_too_late:
            said += await self._let_go_of_what_nobody_has(ask, late)
        return said

    @property
    def before_burial(self) -> Mapping[type[Message], Sequence[Handler]]:
        """How a request ends that goes to the dead letters."""
        return {BuildInstance: (self._end_buried, self._let_go_of_buried)}

    async def _end_buried(self, asks: Sequence[Received[BuildInstance]], late: LateTransaction) -> list[Said]:
        """A request that was never written ends in error, by a row without its name: a client's words may be what the
        database refuses. Whoever has a copy of the request in hand finds that row, and lets go of what it claims.
        """
        said: list[Said] = []
        now = self._clock()
        for ask in asks:
            read = self._read(ask, now)
            if not isinstance(read, Sound):
                # Rejected when it came; but an earlier try may have claimed for what has become too old.
                said += await self._let_go_of_what_nobody_has(ask, late) if read.field == SENT_AT else ()
                continue
            build = _Build(read, now, self._settings)
            ended = NewRequest(read.id, read.digest, tuple(_ended(row, now) for row in build.rows))
            (acceptance,) = await (await late.begun()).accept([ended])
            build.learn(acceptance)
            if isinstance(build.judged, BuildRejected):
                said += await self._let_go_of_what_nobody_has(ask, late)
                continue
            names = await late.note(one.row for one in build.taken)
            said += [
                Tell(message, ask, kept)
                for one in build.taken
                for kept, message in names.kept_messages(one.row)
            ]
        return said

    async def _let_go_of_buried(
        self, asks: Sequence[Received[BuildInstance]], late: LateTransaction
    ) -> list[Said]:
        """Where no row of the request can be written, no copy of it can be placed: its claims are released all the same."""
        return [each for ask in asks for each in await self._let_go_of_what_nobody_has(ask, late)]

    def _read(self, ask: Received[BuildInstance], now: datetime) -> "Sound | BuildRejected":
        build = ask.message
        understood = self._understood(build, _canonical(structs.replace(build, request_id=None)))
        if isinstance(understood, BuildRejected):
            return understood
        if ask.sent_at is not None and now - ask.sent_at > self._horizon:
            return too_old(ask, self._horizon)
        assert build.request_id is not None, "a request without an id is rejected"
        return Sound(ask, build.request_id, *understood)

    def _understood(self, build: BuildInstance, content: bytes) -> tuple[Wish, bytes] | BuildRejected:
        """What it wishes, and the digest of what it says beside its id."""
        if build.request_id is not None and (known := self._wishes.get(content)) is not None:
            return known
        wish = read_request(build, self._vocabulary)
        if isinstance(wish, BuildRejected):
            return wish
        if len(self._wishes) >= WISHES_MAX:
            self._wishes.clear()
        understood = self._wishes[content] = wish, hashlib.sha256(content).digest()
        return understood

    async def _accept(self, builds: Sequence["_Build"]) -> None:
        """Committed, and so their deadline set, before anything that may take long."""
        if not builds:
            return
        async with self._store.transaction() as transaction:
            acceptances = await transaction.accept([build.as_new() for build in builds])
        for build, acceptance in zip(builds, acceptances, strict=True):
            build.learn(acceptance)

    async def _write_at_once(self, builds: Sequence["_Build"], late: LateTransaction) -> None:
        """Somebody may have been there before, with the same request, another, or a delete."""
        if not builds:
            return
        now = self._clock()
        acceptances = await (await late.begun()).accept([build.as_placed(now) for build in builds])
        for build, acceptance in zip(builds, acceptances, strict=True):
            build.learn(acceptance)

    async def _decide(self, builds: Sequence["_Build"], late: LateTransaction) -> None:
        """Compare and set: what is still open becomes what was found."""
        now = self._clock()
        decided = {
            row.id: (one, row)
            for build in builds
            for one in build.still_open
            if (row := _decided(one.row, one, now, self._settings)) is not None
        }
        if decided:
            others = await (await late.begun()).decide([row for _, row in decided.values()])
            for id_, (one, row) in decided.items():
                one.row = others.get(id_, row)

    async def _let_go(self, build: "_Build", late: LateTransaction) -> list[Said]:
        """Of what it found, if it was decided otherwise meanwhile."""
        ask = build.asks[0].ask
        # An earlier try of a rejected request may have claimed for it, and died before it let go.
        if isinstance(build.judged, BuildRejected):
            if ask.attempts or any(isinstance(one.outcome, Holds) for one in build.searches):
                return await self._let_go_of_what_nobody_has(ask, late, new=_new_claims(build))
            return []
        return [
            Tell(released(one.row), ask)
            for one in build.searches
            if isinstance(held := one.outcome, Holds)
            and (one.row.is_open or one.row.may_lose(is_new=held.is_new))
        ]

    async def _let_go_of_what_nobody_has(
        self, ask: Received[BuildInstance], late: LateTransaction, *, new: Collection[InstanceId] = ()
    ) -> list[Said]:
        """Release what this request may have claimed for instances that have no row, or whose row holds nothing any more:
        placement may have forgotten by now that they ended, and grant it.
        """
        instances = sorted(instances_of(ask.message, instance_id_of), key=lambda id_: id_.int)
        known = await (await late.begun()).lock(instances)
        return [
            Tell(release_of(id_, self._clock()), ask)
            for id_ in instances
            if (row := known.get(id_)) is None or row.may_lose(is_new=id_ in new)
        ]


class _Build:
    """A request on its way, with all who ask for it in this batch."""

    def __init__(self, one: Sound, now: datetime, settings: SchedulerSettings) -> None:
        self.asks = [one]
        self.settings = settings
        self.rows = _rows(one.ask.message, now, settings)
        self.searches = [Search(row, one.ask.message, one.wish) for row in self.rows]
        self.judged: Known | BuildRejected = Known(self.rows)

    @property
    def is_found(self) -> bool:
        return all(isinstance(one.outcome, Holds) for one in self.searches)

    def learn(self, acceptance: Acceptance) -> None:
        self.judged = _judged(self.asks[0].ask, self.asks[0].id, acceptance)
        if isinstance(self.judged, Known):
            for one, row in zip(self.searches, self.judged.rows, strict=True):
                one.row = row

    @property
    def taken(self) -> Sequence[Search]:
        """None of a request that is refused."""
        return self.searches if isinstance(self.judged, Known) else ()

    @property
    def still_open(self) -> list[Search]:
        """Those to decide."""
        return [one for one in self.taken if one.row.is_open]

    def as_new(self) -> NewRequest:
        return NewRequest(self.asks[0].id, self.asks[0].digest, self.rows)

    def as_placed(self, now: datetime) -> NewRequest:
        decided = [_decided(one.row, one, now, self.settings) for one in self.searches]
        rows = tuple([row for row in decided if row is not None])
        return NewRequest(self.asks[0].id, self.asks[0].digest, rows)


def _builds(sound: Sequence[Sound], now: datetime, settings: SchedulerSettings) -> list[_Build]:
    """A request that came twice is built once, as it came first."""
    builds: dict[int, _Build] = {}
    for one in sound:
        if known := builds.get(one.id.int):
            known.asks.append(one)
        else:
            builds[one.id.int] = _Build(one, now, settings)
    return list(builds.values())


def _answered(one: Sound, build: _Build, names: Names) -> list[Said]:
    if isinstance(build.judged, BuildRejected):
        return list(rejected(one.ask, build.judged))
    if one.digest != build.asks[0].digest:
        return list(rejected(one.ask, other_content(one.ask)))
    said = list(taken(one.ask, one.id, [row.id for row in build.rows]))
    if one is build.asks[0]:
        for each in build.searches:
            said += [Tell(message, one.ask, kept) for kept, message in names.kept_messages(each.row)]
    return said


def _rows(build: BuildInstance, now: datetime, settings: SchedulerSettings) -> tuple[InstanceRow, ...]:
    """Until a host is chosen nobody knows its kind: the rows are due as if it were a hypervisor."""
    seconds = settings.request_timeout_s if build.deadline_s is None else build.deadline_s
    ends_by = now + timedelta(seconds=seconds)
    return accepted(build, instances_of(build, instance_id_of), now, ends_by)


def _ended(row: InstanceRow, now: datetime) -> InstanceRow:
    nameless = structs.replace(row, told=structs.replace(row.told, name=""))
    ended = failed(nameless, now, reason=BURIED)
    assert ended is not None, "nothing is decided of a new row"
    return ended


def _judged(
    ask: Received[BuildInstance], request: RequestId, acceptance: Acceptance
) -> Known | BuildRejected:
    match acceptance:
        case Known():
            return acceptance
        case OtherContent():
            return other_content(ask)
        case InstancesTaken(instances):
            return BuildRejected(
                request_id=request,
                field="instance_ids",
                value=", ".join(map(str, instances)),
                reason="duplicate id: they belong to another request",
            )


def _new_claims(build: _Build) -> set[InstanceId]:
    """The instances that had no share before this try of the request claimed one."""
    return {one.row.id for one in build.searches if isinstance(one.outcome, Holds) and one.outcome.is_new}


def _decided(row: InstanceRow, one: Search, now: datetime, settings: SchedulerSettings) -> InstanceRow | None:
    match one.outcome:
        case Holds() as holds:
            order = _order(row, one.build, holds, settings)
            return placed(row, order, holds.choice.name, now, refusals=tuple(one.refusals))
        case NoValidHost() as nowhere:
            return failed(row, now, reason="no valid host", no_valid_host=nowhere)
        case Refused(reason):
            return failed(row, now, reason=reason)
        case Over(reason):
            return deleted(row, now, reason) if row.is_open else None
        case None:
            return None


def _order(row: InstanceRow, build: BuildInstance, holds: Holds, settings: SchedulerSettings) -> PlaceInCell:
    assert build.flavor is not None, "a request without a flavor is rejected"
    return PlaceInCell(
        cell=holds.cell,
        instance=row.id,
        request_id=row.told.request_id,
        attempt=holds.attempt,
        issued_at=row.issued_at,
        ends_by=_ends_by(row, build, holds, settings),
        flavor=build.flavor,
        chosen=holds.choice,
        alternates=holds.alternates,
        name=row.told.name,
        project=build.project,
        user=build.user,
        image_properties=build.image_properties,
        group=build.group,
        image=build.image,
        config_drive=build.config_drive,
        ports=build.ports,
    )


def _ends_by(row: InstanceRow, build: BuildInstance, holds: Holds, settings: SchedulerSettings) -> datetime:
    """Counted from the acceptance. A request that names no deadline, and may be built on a node, has a node's time."""
    if build.deadline_s is None and NODE in [each.kind for each in (holds.choice, *holds.alternates)]:
        return row.issued_at + timedelta(seconds=settings.node_request_timeout_s)
    return row.ends_by
