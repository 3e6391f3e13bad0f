"""A batch of build requests, from the queue to the orders to the cells: read, accept, find hosts, decide, note, answer.

    read_request                engine/requests: is the request valid, and what does one instance need?
    Claimer.find_hosts          claiming/claimer.py: choose in the picture, claim from placement.
    after_search                core/instances/rows.py: the row with that outcome, and its order to the cell.
    transaction.note, tells     scheduler_worker/outbox.py: the messages that the rows have to send.

Several workers may have the same request. The rows of its instances decide between them: a worker writes its outcome
only on rows that are still open, and if another worker was first, it releases the claim that it got.

An instance that finds no room, and whose request asked to wait, is written as waiting: the message is acknowledged. When a
host may have room, requests/waking.py has its order carried out again (`Builder.try_again`), by the same steps as a new one after it
is accepted. A copy of the request that finds a host meanwhile places it all the same.

A row costs as much as everything else that is done here. So if a batch has several requests, all delivered for the
first time, those that get the host of their first choice at once are written once, as placed. Until then only the
unacknowledged message says that their claims have an owner. A request that has to wait, comes alone, or is delivered
again is written first, and so ends by its deadline whatever happens. If even writing fails for good, `Builder.end_in_error` ends
the request before it becomes a dead letter: otherwise the claim of its first delivery would stay for ever.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import structs

from bus.messages.build import BuildAccepted, BuildInstance, BuildRejected
from bus.workers.handlers import Answer, Handlers, Received, Said, Tell, Weighed
from engine.choosing.verdicts import Holds, SearchRefused
from engine.flavors import InstanceId
from engine.requests import COUNT_MAX
from kit.metrics import Histogram, Readings
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.instances.history import alternatives_in, decoded, specs_in
from scheduler_worker.core.instances.rows import (
    ACCEPTED,
    PLACED,
    WAITING,
    InstanceRow,
    KeptRequest,
    Timeouts,
    accepted,
    after_search,
    failed,
    instance_ids_of,
    release_of,
    releases_of_ended,
)
from scheduler_worker.metrics import ACCEPTED as WAITED
from scheduler_worker.metrics import REQUESTS
from scheduler_worker.outbox import OutboxTransaction, rejected_line, request_line
from scheduler_worker.requests.catalog import read_requests
from scheduler_worker.requests.limits import ProjectLimits
from scheduler_worker.requests.reading import (
    SENT_AT,
    LastFilters,
    RequestReader,
    Search,
    ValidRequest,
    other_content,
    rejected,
    taken_instances,
    with_groups,
    with_neighbours,
)
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import (
    Acceptance,
    InstancesTaken,
    Known,
    NewRequest,
    OtherContent,
    SchedulerStore,
    SchedulerTransaction,
)
from scheduler_worker.waiting import WaitingNeeds, encoded_needs

# Releases of claims that a request may have made, and that no row of an instance needs.


async def released_unless_held(
    ask: Received[BuildInstance],
    transaction: OutboxTransaction,
    now: datetime,
    *,
    new: Collection[InstanceId] = (),
) -> list[Said]:
    """Releases for the claims of these instances that no row needs: those that ended, or have no row. Placement may
    have forgotten by now that they ended, and grant a claim that comes late.
    """
    instances = sorted(instance_ids_of(ask.message))
    known = await (await transaction.begun()).lock(instances)
    return [
        Tell(release, ask)
        for release in releases_of_ended(instances, known, now, ask.message.project, new=new)
    ]


# A batch of requests builds at most so many instances in one transaction, or is a single request.
INSTANCES_AT_ONCE_MAX = 2_000

_encoded = msgspec.msgpack.Encoder().encode

BURIED = "its request went to the dead letters before it was written down: ask again, by another id"
BURIED_ACCEPTED = (
    "workers failed at its request, which is among the dead letters now: ask again, by another id"
)


class Builder:
    def __init__(
        self,
        store: SchedulerStore,
        claimer: Claimer,
        reader: RequestReader,
        clock: Callable[[], datetime],
        settings: SchedulerSettings,
        *,
        last_filters: LastFilters,
        limits: ProjectLimits,
    ) -> None:
        self._limits = limits
        self._last_filters = last_filters
        self._counts = Counter({"accepted": 0, "rejected": 0})
        self._waited = Histogram(WAITED)
        self._store = store
        self._claimer = claimer
        self.reader = reader
        self._clock = clock
        self._settings = settings

    @property
    def readings(self) -> Readings:
        """How long requests waited until work on them began, and how many were accepted and rejected."""
        return (
            self._waited,
            REQUESTS.numbers({(outcome,): count for outcome, count in self._counts.items()}),
        )

    def handlers(self) -> Handlers:
        return {
            BuildInstance: Weighed(
                self.on_builds,
                lambda build: min(max(build.count, 1), COUNT_MAX),
                INSTANCES_AT_ONCE_MAX,
            )
        }

    async def on_builds(
        self, asks: Sequence[Received[BuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        now = self._clock()
        read = await read_requests(self.reader, self._store, asks, now)
        valid, over = await self._limits.judged(
            [each for each in read if isinstance(each, ValidRequest)], now
        )
        invalid = [(ask, why) for ask, why in zip(asks, read, strict=True) if isinstance(why, BuildRejected)]
        invalid += [(request.ask, why) for request, why in over]
        taken = valid
        transaction.when_committed(lambda: self._limits.written(taken))
        said = [each for ask, why in invalid for each in rejected(ask, why)]
        came_back_too_late = [ask for ask, why in invalid if why.field == SENT_AT]
        if any(request.names_others for request in valid):
            valid, unknown = await with_neighbours(self._store, valid)
            said += [each for request, why in unknown for each in rejected(request.ask, why)]
            came_back_too_late += [request.ask for request, _ in unknown]
            valid = await with_groups(self._store, valid)
        builds = self._begun(valid, now)
        if asks[0].sent_at is not None and builds:
            instances = sum([len(build.rows) for build in builds])
            self._waited.observe((now - asks[0].sent_at).total_seconds(), instances)
        if len(asks) > 1 and not any(ask.attempts for ask in asks):
            await self._claimer.find_at_once(
                [one for build in builds if not build.is_whole for one in build.searches]
            )
        await self._accept_and_find(builds, transaction)
        await self._decide(builds, transaction)
        accepted = sum([build.rejection is None for build in builds])
        self._counts["accepted"] += accepted
        self._counts["rejected"] += len(asks) - len(valid) + len(builds) - accepted
        if transaction.is_logged:
            transaction.lines += [rejected_line(ask, why) for ask, why in invalid]
            # The line of an instance that was placed alone says enough about its request, too.
            transaction.lines += [
                request_line(build.requests[0].ask, len(build.rows))
                if build.rejection is None
                else rejected_line(build.requests[0].ask, build.rejection)
                for build in builds
                if build.rejection is not None or len(build.rows) > 1 or build.rows[0].told.state != PLACED
            ]
        for build in builds:
            for each in build.requests:
                said += _answered(each, build)
        said += await self._told(builds, transaction)
        for ask in came_back_too_late:
            if ask.attempts:
                # An earlier try may have claimed for it, and died before it wrote that down.
                said += await released_unless_held(ask, transaction, self._clock())
        return said

    def _begun(self, valid: Sequence[ValidRequest], now: datetime) -> Sequence["_Build"]:
        """One build for each request id: a request that came twice is built once, with the content that came first."""
        builds: dict[int, _Build] = {}
        for one in valid:
            if known := builds.get(one.id.int):
                known.requests.append(one)
            else:
                build = builds[one.id.int] = _new_build(one, now, self._settings)
                self._claimer.picture.usual.note(one.spec.amounts, len(build.rows))
        return [*builds.values()]

    async def try_again(
        self, orders: Mapping[InstanceId, BuildInstance], transaction: OutboxTransaction
    ) -> tuple[list[Said], Mapping[InstanceId, bool]]:
        """Search hosts again for these instances, which wait by these orders. Returns what is to be said, and those that wait
        on, each with whether its search gave up before it had tried all hosts.
        """
        rows = await self._store.rows_of(orders)
        # Placement may find the moment of their acceptance too old. At this time nothing waits for the row of an unknown host.
        since = self._clock() - timedelta(seconds=self._claimer.pace.host_row_wait_s)
        builds = [
            _build_again(row, order, max(row.issued_at, since), self._settings)
            for id_, order in orders.items()
            if (row := rows.get(id_)) is not None and row.told.state == WAITING
        ]
        await self._claimer.find_hosts([build.searches[0] for build in builds])
        await self._decide(builds, transaction)
        return await self._told(builds, transaction), {
            build.rows[0].id: isinstance(build.searches[0].outcome, SearchRefused)
            for build in builds
            if build.rows[0].told.state == WAITING
        }

    async def _accept_and_find(self, builds: Sequence["_Build"], transaction: OutboxTransaction) -> None:
        found: list[_Build] = []
        others: list[_Build] = []
        for build in builds:
            (found if build.is_found else others).append(build)
        if others:
            # Committed, and so with a deadline, before anything that may take long.
            async with self._store.transaction() as earlier:
                await _accept(earlier, others, [build.as_new() for build in others])
            await self._claimer.find_hosts(
                [build.searches[at] for build in others if not build.is_whole for at in build.open]
            )
        for build in others:
            if build.is_whole and build.are_all_open():
                build.refusal = await self._claimer.find_together(build.searches)
        if found:
            # Another worker may have been there before, with the same request, another one, or a delete.
            placed_at = self._clock()
            at_once = [build.as_placed(placed_at) for build in found]
            await _accept(await transaction.begun(), found, at_once)

    async def _decide(self, builds: Sequence["_Build"], transaction: OutboxTransaction) -> None:
        """Write the outcomes of the searches on the rows that are still open (compare and set)."""
        await self._decide_accepted(builds, transaction)
        await self._decide_waiting(builds, transaction)
        await transaction.note(row for build in builds if not build.rejection for row in build.rows)

    async def _told(self, builds: Sequence["_Build"], transaction: OutboxTransaction) -> list[Said]:
        """The messages of the rows, and releases of claims that none of them needs."""
        said: list[Said] = []
        for build in builds:
            if not build.is_placed:
                said += await self._release(build, transaction)
            for row in build.rows if not build.rejection else ():
                said += transaction.tells(row, build.ask)
        return said

    async def _decide_accepted(self, builds: Sequence["_Build"], transaction: OutboxTransaction) -> None:
        now = self._clock()
        if any(build.is_whole for build in builds):
            await self._lock_open(builds, transaction)
        decided = [
            (build, at, row)
            for build in builds
            for at in build.open
            if (row := build.decided(at, now)) is not None
        ]
        if decided:
            others = await (await transaction.begun()).decide([row for _, _, row in decided])
            for build, at, row in decided:
                build.rows[at] = others.get(row.id, row)
                if row.told.no_valid_host is not None and row.id not in others:
                    self._last_filters.no_host(row.told.no_valid_host)

    async def _decide_waiting(self, builds: Sequence["_Build"], transaction: OutboxTransaction) -> None:
        """Decide instances that wait: those that are tried again; and of a copy of their request those for which this worker has
        found hosts, while another one wrote them as waiting. Claims for these are not released, since a worker that tries the
        waiting instance may have found such a claim and use it.
        """
        found = {
            build.rows[at].id: (build, at)
            for build in builds
            if build.rejection is None
            for at, row in enumerate(build.rows)
            if row.told.state == WAITING
            and (build.has_waited or isinstance(build.searches[at].outcome, Holds))
        }
        if not found:
            return
        store = await transaction.begun()
        rows = await store.lock(sorted(found))
        decided = []
        for id_, row in rows.items():
            build, at = found[id_]
            build.rows[at] = row
            if (after := build.decided(at, self._clock())) is not None:
                build.rows[at] = after
                decided.append(after)
        await store.save(decided)

    async def _lock_open(self, builds: Sequence["_Build"], transaction: OutboxTransaction) -> None:
        """Lock the rows of the instances that have not ended. So if the instances of a request are placed all or none,
        nobody can end one of them between the look at all of them and the decision.
        """
        open_ids = [build.rows[at].id for build in builds for at in build.open]
        locked = await (await transaction.begun()).lock(sorted(open_ids))
        for build in builds:
            for at in build.open:
                build.rows[at] = locked[build.rows[at].id]
            if build.is_whole:
                build.are_all_open()

    async def _release(self, build: "_Build", transaction: OutboxTransaction) -> list[Said]:
        """Release the claims that the searches got, if the instances were decided otherwise meanwhile."""
        ask = build.ask
        held = [
            (row, one.outcome)
            for row, one in zip(build.rows, build.searches, strict=True)
            if isinstance(one.outcome, Holds)
        ]
        if build.rejection is None:
            return [
                Tell(release_of(row.id, row.issued_at, row.told.project), ask)
                for row, holds in held
                if row.is_open or row.may_lose(is_new=holds.is_new)
            ]
        # An earlier try of a rejected request may have claimed for it, and died before it released that.
        if ask is not None and (ask.attempts or held):
            new: set[InstanceId] = {row.id for row, holds in held if holds.is_new}
            return await released_unless_held(ask, transaction, self._clock(), new=new)
        return []

    # A build request that becomes a dead letter ends, because an earlier delivery of it may have claimed hosts.

    async def end_in_error(
        self, asks: Sequence[Received[BuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Write the instances of these requests as failed, and release their claims. New rows have no name, since the client's text may
        be what the database refused. Rows that are there end in error while they are `accepted`: one that waits is tried by its row.
        A worker that still works on a copy of the request finds the rows and releases its claims.
        """
        said: list[Said] = []
        now = self._clock()
        for ask, read in zip(asks, await read_requests(self.reader, self._store, asks, now), strict=True):
            if not isinstance(read, ValidRequest):
                # Rejected when it came; but an earlier try may have claimed for a request that is too old now.
                if read.field == SENT_AT:
                    said += await released_unless_held(ask, transaction, now)
                continue
            ended = tuple(_ended(row, now) for row in new_rows(ask.message, now, self._settings))
            store = await transaction.begun()
            (acceptance,) = await store.accept([NewRequest(read.id, read.digest, ended)])
            rows = rows_or_rejection(read, acceptance)
            if isinstance(rows, BuildRejected):
                said += [*rejected(ask, rows), *await released_unless_held(ask, transaction, now)]
                continue
            still = [row for row in rows if row.told.state == ACCEPTED]
            over = {
                row.id: row
                for each in still
                if (row := failed(each, now, reason=BURIED_ACCEPTED)) is not None
            }
            await store.save([*over.values()])
            instances = tuple([row.id for row in rows])
            told = BuildAccepted(request_id=read.id, instances=instances, project=ask.message.project)
            said += [Answer(ask, told), Tell(told, ask)]
            said += await transaction.say([over.get(row.id, row) for row in rows], ask)
        return said

    async def release(
        self, asks: Sequence[Received[BuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Release the claims of these requests, for which no row can be written.

        This is safe: without rows nobody can place their instances, not even a worker that still works on an earlier
        delivery of the same request.
        """
        said: list[Said] = []
        for ask in asks:
            why = BuildRejected(request_id=ask.message.request_id, field="message", value="", reason=BURIED)
            said += [*rejected(ask, why), *await released_unless_held(ask, transaction, self._clock())]
        return said


class _Build:
    """The instances of one order while it is worked on, with the search for the host of each.

    These are all instances of a request, with all of its deliveries in this batch; the first delivery is the one that is built. Or
    it is an instance that has waited, without requests.
    """

    def __init__(
        self,
        rows: Sequence[InstanceRow],
        searches: Sequence[Search],
        settings: SchedulerSettings,
        request: ValidRequest | None = None,
    ) -> None:
        self.requests = [] if request is None else [request]
        self.rows = list(rows)
        self.searches = searches
        self.rejection: BuildRejected | None = None
        # Why none of its instances is built.
        self.refusal: SearchRefused | None = None
        self._timeouts = Timeouts(settings.request_timeout_s, settings.node_request_timeout_s)
        self.kept = None if request is None else _kept_request(request)

    @property
    def ask(self) -> Received[BuildInstance] | None:
        return self.requests[0].ask if self.requests else None

    @property
    def has_waited(self) -> bool:
        return not self.requests

    @property
    def is_whole(self) -> bool:
        """Must all instances of this request be placed together, or none?"""
        return self.searches[0].build.all_or_nothing and len(self.searches) > 1

    def are_all_open(self) -> bool:
        """Is no instance of this request decided yet? If some are, which happens when a client deletes them, the others
        are refused.
        """
        still_open = self.open
        if 0 < len(still_open) < len(self.rows):
            ended = next(row for row in self.rows if not row.is_open)
            self.refusal = SearchRefused(f"all or nothing: instance {ended.id} is {ended.told.state} already")
        return len(still_open) == len(self.rows)

    @property
    def is_placed(self) -> bool:
        """Are all of its instances placed, so that each keeps what was claimed for it?"""
        return self.rejection is None and not [row for row in self.rows if row.told.state != PLACED]

    @property
    def is_found(self) -> bool:
        return all(isinstance(one.outcome, Holds) for one in self.searches)

    @property
    def open(self) -> list[int]:
        """The instances that are accepted and to be decided, by their index in the request; empty for a request that is
        rejected. Those that wait are not among them.
        """
        if self.rejection:
            return []
        return [at for at, row in enumerate(self.rows) if row.told.state == ACCEPTED]

    def learn(self, acceptance: Acceptance) -> None:
        judged = rows_or_rejection(self.requests[0], acceptance)
        if isinstance(judged, BuildRejected):
            self.rejection = judged
            return
        self.rows = list(judged)
        for row, search in zip(self.rows, self.searches, strict=True):
            # It may have been accepted before: its claim was made with that time.
            search.issued_at = row.issued_at

    def decided(self, at: int, now: datetime) -> InstanceRow | None:
        search = self.searches[at]
        return after_search(
            self.rows[at],
            search.build,
            self.refusal or search.outcome,
            search.refusals,
            now,
            group=search.spec.server_group,
            timeouts=self._timeouts,
            kept=self.kept,
            found=search.found,
        )

    def as_new(self) -> NewRequest:
        return NewRequest(self.requests[0].id, self.requests[0].digest, tuple(self.rows))

    def as_placed(self, now: datetime) -> NewRequest:
        decided = [self.decided(at, now) for at in range(len(self.rows))]
        rows = tuple([row for row in decided if row is not None])
        return NewRequest(self.requests[0].id, self.requests[0].digest, rows)


def _new_build(request: ValidRequest, now: datetime, settings: SchedulerSettings) -> _Build:
    ask = request.ask
    rows = new_rows(ask.message, now, settings, request.spec_bytes, by=ask.sender)
    searches = [
        Search(row.id, row.issued_at, ask.message, request.spec, request.alternatives, trace=ask.trace)
        for row in rows
    ]
    if request.unjoined:
        for search in searches:
            search.outcome = SearchRefused(request.unjoined)
    return _Build(rows, searches, settings, request)


def _build_again(
    row: InstanceRow, order: BuildInstance, claimed_at: datetime, settings: SchedulerSettings
) -> _Build:
    """An instance that has waited. Its row has what it needs: a flavor or a group may have been changed or deleted since."""
    spec = decoded(row.spec)
    assert spec is not None, "a row that waits has its needs"
    search = Search(row.id, claimed_at, order, spec, alternatives_in(row.spec))
    return _Build([row], [search], settings)


async def _accept(
    store: SchedulerTransaction, builds: Sequence[_Build], requests: Sequence[NewRequest]
) -> None:
    for build, request, acceptance in zip(builds, requests, await store.accept(requests), strict=True):
        if isinstance(acceptance, Known) and acceptance.rows is request.rows:
            # As they were made here.
            build.rows = [*request.rows]
        else:
            build.learn(acceptance)


def _kept_request(request: ValidRequest) -> KeptRequest | None:
    """What each waiting row keeps of its request; None if the request does not ask to wait."""
    build = request.ask.message
    if build.wait is None or request.unjoined:
        return None
    # A request may name a thousand instances: each row knows its own.
    # Requests that need the same hosts are tried together, whatever their priorities.
    needs = encoded_needs(WaitingNeeds(specs_in(request.spec_bytes)))
    return KeptRequest(
        hashlib.sha256(needs).digest(), _encoded(structs.replace(build, instance_ids=())), needs
    )


def new_rows(
    build: BuildInstance, now: datetime, settings: SchedulerSettings, spec: bytes = b"", *, by: str = ""
) -> tuple[InstanceRow, ...]:
    """The rows of a request's instances when it is accepted, with their deadline. Whether they go to nodes is not known
    before a host is chosen, so the deadline is that of hypervisors.
    """
    seconds = settings.request_timeout_s if build.deadline_s is None else build.deadline_s
    if build.wait is not None:
        seconds = build.wait.for_s
    return accepted(build, instance_ids_of(build), now, now + timedelta(seconds=seconds), spec, by=by)


def rows_or_rejection(
    request: ValidRequest, acceptance: Acceptance
) -> tuple[InstanceRow, ...] | BuildRejected:
    match acceptance:
        case Known(rows):
            return rows
        case OtherContent():
            return other_content(request.ask)
        case InstancesTaken(instances):
            return taken_instances(request.id, instances)


def _answered(request: ValidRequest, build: _Build) -> list[Said]:
    if build.rejection is not None:
        return list(rejected(request.ask, build.rejection))
    if request.digest != build.requests[0].digest:
        return list(rejected(request.ask, other_content(request.ask)))
    instances = tuple([row.id for row in build.rows])
    told = BuildAccepted(request_id=request.id, instances=instances, project=request.ask.message.project)
    # As a reply, and as an event.
    return [Answer(request.ask, told), Tell(told, request.ask)]


def _ended(row: InstanceRow, now: datetime) -> InstanceRow:
    nameless = structs.replace(row, told=structs.replace(row.told, name=""))
    ended = failed(nameless, now, reason=BURIED)
    assert ended is not None, "a new row is open"
    return ended
