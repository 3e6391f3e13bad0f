"""The faults of what is no instance of a cell: claims beside instances, bare-metal nodes in Ironic, what Nova holds, and what
keepers have.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from bus.messages.audit import BESIDE_INSTANCES, BookEntry, CellEntry, SeenConsumer
from bus.messages.build import InstanceState
from bus.messages.keeping import BudgetState, MoveBudget, Movement
from engine.flavors import InstanceId
from engine.hosts import NODE
from engine.inventories import ConsumerId, GroupId, ProviderId
from kit.errors import Operational
from moor.client.books.books_reader import BooksReader
from moor.client.books.instance_rules import (
    LOST,
    NO_CELLS,
    amounts_in_words,
    faults_of,
    is_in_doubt,
    is_in_flight,
    no_such_cell,
    own_entry,
    way_back_of,
    whereabouts,
)
from moor.client.books.views import (
    Fault,
    InstanceView,
    Places,
    Sight,
    is_held_by_nova,
    is_of_nova,
    order_to_free,
    seen_of,
)

# Which claims hold resources although no row of an instance has their id? Pure.
#
# Migrations and cleanups have ids of their own. Whether an instance needs one of them is known only when all rows are read.

LEAK = "leak"


class NeededClaims:
    """Notes, from the views of all instances, which consumers beside instances may be needed."""

    def __init__(self) -> None:
        # Consumers that a cell counts on or has just freed.
        self._needed: set[ConsumerId] = set()
        # By cell and project (None: unknown), the highest attempt of the instances in doubt.
        self._doubts: dict[tuple[str, str | None], int] = {}

    def note(self, view: InstanceView, sight: Sight) -> None:
        if is_in_doubt(view, own_entry(view)):
            self._note_doubt(view)
        for entry in view.in_cells:
            self._needed.update(
                claim.consumer for claim in entry.claims if claim.consumer != entry.instance.id
            )
            if is_in_flight(view, sight):
                self._needed.update(entry.freed)

    def _note_doubt(self, view: InstanceView) -> None:
        project = None if view.consumer is None else view.consumer.project
        for each in view.on_hosts:
            key = each.cell, project
            self._doubts[key] = max(each.entry.attempt, self._doubts.get(key, 0))

    def may_be_needed(self, view: InstanceView) -> bool:
        return view.id in self._needed or self._may_be_of_doubted(view.consumer)

    def _may_be_of_doubted(self, consumer: BookEntry | None) -> bool:
        """May this be the migration or a cleanup of an instance in doubt? The row that named it may be lost."""
        if consumer is None or consumer.type not in BESIDE_INSTANCES:
            return False
        of_any = self._doubts.get((consumer.cell, None), 0)
        return consumer.attempt <= max(of_any, self._doubts.get((consumer.cell, consumer.project), 0))


def is_claim_alone(view: InstanceView) -> bool:
    """True if placement has a claim for this id, and no row of the API level or of a cell has the id.

    Allocations that a program wrote for itself are no claim, nor is what Nova holds.
    """
    consumer = view.consumer
    return (
        view.is_alone
        and consumer is not None
        and bool(consumer.held)
        and consumer.attempt > 0
        and not is_of_nova(consumer)
    )


def faults_alone(view: InstanceView, sight: Sight, places: Places) -> list[Fault]:
    """The faults of a consumer whose id no row has, and that no instance needs."""
    consumer = view.consumer
    if consumer is None or consumer.type not in BESIDE_INSTANCES:
        return [*faults_of(view, sight, places)]
    is_unanswered = consumer.cell in sight.known - sight.cells
    if not consumer.held or consumer.is_new or is_unanswered:
        return []
    # A migration's or cleanup's consumer that holds resources although no cell needs it.
    is_known = consumer.cell in (*NO_CELLS, *sight.known)
    what = "move" if consumer.type == "MIGRATION" else "cleanup"
    leak = Fault(
        LEAK,
        consumer.id,
        f"consumer {consumer.id} of type {consumer.type} holds {amounts_in_words(consumer.held, places)}, and no {what} of any "
        f"instance of cell {consumer.cell} needs it",
        mend=order_to_free(consumer) if is_known else None,
        advice="" if is_known else no_such_cell(consumer),
        version=(consumer.generation, consumer.attempt, consumer.held),
    )
    return [leak]


# Does Ironic have instances on bare-metal nodes where the books have them? Pure.
#
# Nobody else tells of an instance that Ironic has and no book knows: it runs on, and its node is never offered again. Ironic may
# have forgotten the node for longer than its row is kept, while the instance was deleted.

STRAY_ON_NODE = "stray on node"
OF_NOBODY = "deployed for nobody"
# At rest on its node.
_THERE = ("active", "stopped")


class NodeInIronic(Struct, frozen=True):
    """A node as Ironic lists it. While `is_busy`, Ironic works on it, and its instance may be on the way. `is_of_nobody`: it was
    deployed, and has no instance.
    """

    id: ProviderId
    name: str
    state: str
    instance: ConsumerId | None = None
    is_busy: bool = False
    is_of_nobody: bool = False

    @property
    def words(self) -> str:
        return f"node {self.name or self.id} ({self.state})"


NodesInIronic = Mapping[ProviderId, NodeInIronic]


def nodes_of(view: InstanceView) -> set[ProviderId]:
    """The hosts, nodes among them, that may have something of an instance by the rows of its cells."""
    return {each.host for entry in view.in_cells for each in entry.on_hosts}


def faults_on_nodes(
    suspects: Sequence[ConsumerId],
    views: Mapping[ConsumerId, InstanceView],
    nodes: NodesInIronic,
    sight: Sight,
    places: Places,
) -> Iterator[Fault]:
    """The faults of these instances, as both Ironic and the books have them now."""
    named = {*suspects}
    for node in nodes.values():
        if node.instance in named and node.instance is not None:
            yield from _stray(node, node.instance, views.get(node.instance), sight, places)
    for view in views.values():
        yield from lost_from_node(view, nodes, sight, places)


def _stray(
    node: NodeInIronic, instance: ConsumerId, view: InstanceView | None, sight: Sight, places: Places
) -> Iterator[Fault]:
    provider = places.providers.get(node.id)
    is_foreign = provider is not None and not provider.cell
    if node.is_busy or is_foreign:
        return
    if view is None:
        silent = sight.known - sight.cells
        # Its row may be in a cell that has not answered.
        if silent and (provider is None or provider.cell in silent):
            return
    elif node.id in nodes_of(view) or is_in_flight(view, sight):
        return
    known = "no cell and no row of the API level knows it"
    where = known if view is None else whereabouts(view, own_entry(view), places)
    yield Fault(
        STRAY_ON_NODE,
        instance,
        f"instance {instance}: Ironic has it on {node.words}, and {where}",
        advice=f"`moor node adopt {node.id}` takes it over as it is; `moor node undeploy {node.id}` takes it off, and its disks are lost",
        version=(view and view.version,),
    )


def of_nobody(node: NodeInIronic) -> Fault:
    """A node that no claim or instance ever leads back to: it would stay reserved."""
    return Fault(
        OF_NOBODY,
        None,
        f"{node.words}: Ironic has deployed it, and has no instance there",
        advice=f"`moor node undeploy {node.id}` releases it; what another program put there is to stay",
        version=(node.state,),
    )


def lost_from_node(view: InstanceView, nodes: NodesInIronic, sight: Sight, places: Places) -> Iterator[Fault]:
    """The fault of an instance that is at rest on a node by its cell, and not by Ironic. Nodes of another Ironic are not judged."""
    entry = own_entry(view)
    if entry is None or entry.kind != NODE or entry.host is None or entry.instance.state not in _THERE:
        return
    node = nodes.get(entry.host)
    if node is None or node.is_busy or node.instance == view.id or is_in_flight(view, sight):
        return
    yield Fault(
        LOST,
        view.id,
        f"instance {view.id}: it is {entry.instance.state} on {places.name(entry.host)} in cell {entry.instance.cell}, and "
        f"Ironic has {f'instance {node.instance}' if node.instance else 'no instance'} on {node.words}",
        advice="look what became of it in Ironic, or `moor delete` it",
        version=(view.version, node.instance),
    )


# Which of Nova's consumers may be freed, since Nova does not know them? Pure: the caller asks Nova, and remembers each first look.
#
# Nova tells of an instance before it is claimed, and of a migration before it holds anything. Still a consumer is freed only if Nova did
# not know it in two looks that were further apart than any of Nova's own calls may take, and if its row did not change between them.

UNKNOWN = "unknown to nova"


class FirstLook(Struct, frozen=True):
    """When Nova was first found not to know this consumer, and what its row was then."""

    consumer: ConsumerId
    seen: SeenConsumer
    at: datetime


def first_looks(
    unknown: Iterable[BookEntry], earlier: Mapping[ConsumerId, FirstLook], now: datetime
) -> dict[ConsumerId, FirstLook]:
    """The first look at each consumer that Nova does not know now: the earlier one, if its row is still the same.

    A consumer that Nova knows again, or that holds nothing any more, is forgotten.
    """
    return {
        each.id: before
        if (before := earlier.get(each.id)) is not None and before.seen == seen_of(each) and before.at <= now
        else FirstLook(each.id, seen_of(each), now)
        for each in unknown
    }


def _fault(consumer: BookEntry, look: FirstLook, began: datetime, wait: timedelta, places: Places) -> Fault:
    is_over = look.seen == seen_of(consumer) and began - look.at > wait
    return Fault(
        UNKNOWN,
        consumer.id,
        f"consumer {consumer.id} of type {consumer.type} holds {amounts_in_words(consumer.held, places)}, and Nova knows no instance and "
        "no migration of this id",
        mend=order_to_free(consumer) if is_over else None,
        advice=""
        if is_over
        else f"so it is since {_in_words(look.at)}: --heal frees it if Nova still does not know it after {_in_words(look.at + wait)}",
        version=(consumer.generation, consumer.attempt, consumer.ended, consumer.held),
    )


def _in_words(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


# What Nova holds is counted, and Nova is asked which of it is needed.
#
# If Nova does not answer, or one of its cells is silent, the look counts for nothing.


class NovaToAsk(Struct, frozen=True):
    """How the audit asks Nova.

    `unknown` finds those of these consumers that Nova knows as no instance and as no migration. It raises `Operational` if Nova does
    not answer, or cannot say it: then none is unknown. `load` and `save` keep first looks from one audit to the next. `wait` is
    the least time between the two looks.
    """

    unknown: Callable[[Collection[ConsumerId]], Awaitable[frozenset[ConsumerId]]]
    load: Callable[[], Mapping[ConsumerId, FirstLook]]
    save: Callable[[Mapping[ConsumerId, FirstLook]], None]
    wait: timedelta


class HeldByNova(Struct, frozen=True, kw_only=True):
    """What Nova holds: how many consumers, and how much of each class. `is_asked` says whether there is a Nova to ask.

    `problem` says why it could not be asked which of them it needs: then nothing is unknown.
    """

    consumers: int
    amounts: Mapping[str, int]
    unknown: int = 0
    is_asked: bool = False
    problem: str = ""


class NovaBooks:
    """Nova's consumers in one audit. Without `nova` they are only counted, and nothing is kept of them."""

    def __init__(self, reader: BooksReader, clock: Callable[[], datetime], nova: NovaToAsk | None) -> None:
        self._reader = reader
        self._clock = clock
        self._nova = nova
        self._consumers = 0
        self._amounts: Counter[str] = Counter()
        self._entries: dict[ConsumerId, BookEntry] = {}
        self._unknown: dict[ConsumerId, BookEntry] = {}
        self._problem = ""
        # Consumers that Nova does not know since just now.
        self.in_flight = 0

    def note(self, view: InstanceView) -> None:
        if view.consumer is None or not is_held_by_nova(view):
            return
        self._consumers += 1
        for each in view.consumer.held:
            self._amounts[each.resource] += each.amount
        if self._nova is not None:
            self._entries[view.id] = view.consumer

    @property
    def held(self) -> HeldByNova | None:
        """None if Nova holds nothing, and there is none to ask."""
        if not self._consumers and self._nova is None:
            return None
        return HeldByNova(
            consumers=self._consumers,
            amounts=dict(sorted(self._amounts.items())),
            unknown=len(self._unknown),
            is_asked=self._nova is not None,
            problem=self._problem,
        )

    async def faults(self, places: Places, settle: timedelta) -> list[Fault]:
        """Ask Nova, and return the faults of what it does not know. None, and a problem, if it does not answer.

        What it has not known for less than `settle` is in flight: Nova deletes an instance before it frees what that held.
        """
        if self._nova is None:
            return []
        began = self._clock()
        try:
            unknown = await self._nova.unknown(self._entries) if self._entries else frozenset[ConsumerId]()
        except Operational as problem:
            self._problem = str(problem)
            return []
        # What was deleted since placement was read holds nothing any more.
        self._unknown = await self._unchanged(sorted(unknown & self._entries.keys()))
        now = self._clock()
        looks = first_looks(self._unknown.values(), self._nova.load(), now)
        self._nova.save(looks)
        settled = [each for each in self._unknown.values() if now - looks[each.id].at >= settle]
        self.in_flight = len(self._unknown) - len(settled)
        # Only what was first looked at more than `wait` before the present look began is freed.
        return [
            _fault(each, looks[each.id], began, self._nova.wait, places)
            for each in sorted(settled, key=lambda each: each.id)
        ]

    async def left(self, faults: Sequence[Fault]) -> list[Fault]:
        """Those of these faults whose consumer still holds the same."""
        still = await self._unchanged([each.about for each in faults if each.about is not None])
        return [each for each in faults if each.about in still]

    async def _unchanged(self, ids: Sequence[ConsumerId]) -> dict[ConsumerId, BookEntry]:
        views, _ = await self._reader.views_of(ids, ())
        return {
            id_: view.consumer
            for id_, view in views.items()
            if view.consumer is not None and is_held_by_nova(view) and self._is_as_before(view.consumer)
        }

    def _is_as_before(self, consumer: BookEntry) -> bool:
        before = self._entries[consumer.id]
        return (seen_of(before), before.held) == (seen_of(consumer), consumer.held)


# What do keepers have: movements of instances that are not there, more at once than a budget allows, and claims of moves whose movements
# have ended? Pure.
#
# Keepers judge budgets when they grant. They are judged here by code of its own, from the movements and budgets alone, so that an error
# there is seen. It cannot find an excess that has passed; what it finds was one.

NOTHING_MOVES = "movement of nothing"
OVER_BUDGET = "budget exceeded"
CLAIM_LEFT = "claim of an ended movement"
# Granted, and not ended.
_GOING = ("granted", "moving")
_ENDED = ("done", "given_up", "withdrawn")
_HOUR = timedelta(hours=1)


def faults_of_movements(
    movements: Iterable[Movement], instances: Mapping[InstanceId, InstanceState], sight: Sight
) -> Iterator[Fault]:
    """The faults of movements that go on although there is nothing to move from their hosts."""
    for each in movements:
        told = instances.get(each.instance)
        since = each.asked_at if told is None else told.changed_at
        if since is not None and sight.now - since < sight.settle:
            continue
        if why := _why_nothing(each, told):
            yield Fault(
                NOTHING_MOVES,
                each.instance,
                f"{each.cause}: the movement of instance {each.instance} from {each.cell}/{each.host} is {each.life}, and {why}",
                advice=f"`moor campaign cancel {each.campaign}` withdraws what is planned; the keepers' log says what they do",
                version=(each.life, each.granted_at, told and told.sequence),
            )


def _why_nothing(movement: Movement, told: InstanceState | None) -> str:
    if told is None:
        return "no row of the API level has it"
    if told.state == "deleted":
        return "it is deleted"
    if told.state != "moving" and (told.cell, told.host) != (movement.cell, movement.host):
        return f"it is {told.state} on {told.host or 'no host'} in cell {told.cell}"
    return ""


def faults_of_budgets(budgets: Iterable[BudgetState], movements: Sequence[Movement]) -> Iterator[Fault]:
    """The budgets by which the last grant was one too many: of what goes on now, all went on then. A budget that was set later counts
    for the next grant alone.
    """
    for state in budgets:
        granted: dict[str, list[tuple[datetime, Movement]]] = {}
        for each in movements:
            if each.life in _GOING and each.granted_at is not None:
                for subject in _counted_for(state.budget, each):
                    granted.setdefault(subject, []).append((each.granted_at, each))
        for subject, some in sorted(granted.items()):
            last = max(at for at, _ in some)
            if state.set_at is not None and last < state.set_at:
                continue
            for what in _exceeded(state, [at for at, _ in some], last):
                yield Fault(
                    OVER_BUDGET,
                    None,
                    f"budget {state.budget.name}, {subject}: {what}",
                    advice="`moor campaign pause` keeps more from beginning; the keepers' log says who granted what",
                    version=(state.set_at, last, len(some)),
                )


def faults_of_minimums(
    budgets: Iterable[BudgetState],
    group: GroupId,
    movements: Iterable[Movement],
    members: Iterable[InstanceState],
) -> Iterator[Fault]:
    """The budgets by which too few members of this group were left in peace at the last grant. A member that has changed since then may
    have been active.
    """
    # Guests that are evacuated were not alive.
    going = {
        each.instance: each.granted_at if each.kind != "evacuate" else None
        for each in movements
        if each.group == group and each.life in _GOING
    }
    times = [at for at in going.values() if at is not None]
    if not times:
        return
    last = max(times)
    stay = [
        each.id
        for each in members
        if each.id not in going
        and (each.state == "active" or (each.changed_at is not None and each.changed_at > last))
    ]
    for state in budgets:
        budget = state.budget
        is_its = budget.of.lower() in ("", str(group)) and (state.set_at is None or state.set_at <= last)
        if is_its and budget.alive_min is not None and len(stay) < budget.alive_min:
            yield Fault(
                OVER_BUDGET,
                None,
                f"budget {budget.name}, {group}: {len(stay)} active members of the group stay, and {budget.alive_min} must",
                advice="`moor campaign pause` keeps more from beginning; the keepers' log says who granted what",
                version=(state.set_at, last, len(going)),
            )


def _exceeded(state: BudgetState, granted: Sequence[datetime], last: datetime) -> Iterator[str]:
    budget = state.budget
    if budget.at_once is not None and len(granted) > budget.at_once:
        yield f"{len(granted)} movements go on, and {budget.at_once} may"
    in_hour = sum(last - at < _HOUR for at in granted)
    if budget.per_hour is not None and in_hour > budget.per_hour:
        yield f"{in_hour} movements that go on began within an hour, and {budget.per_hour} may"
    for times in budget.quiet:
        if _is_within(last, times):
            yield f"a movement began at {last:%H:%M} UTC, in the quiet time {times}"


def _is_within(at: datetime, times: str) -> bool:
    begin, _, end = times.partition("-")
    clock = f"{at:%H:%M}"
    return begin <= clock < end if begin <= end else clock >= begin or clock < end


def _counted_for(budget: MoveBudget, movement: Movement) -> set[str]:
    """The cells, domains, hosts, projects or groups for which a budget counts a movement."""
    left, reached = (movement.host, movement.place), (movement.to, movement.to_place)
    sides = [left] if budget.side == "out" else [reached] if budget.side == "in" else [left, reached]
    of = budget.of.lower()
    if budget.scope == "domain":
        depth = budget.level or budget.of.count("/") + 1
        paths = ["/".join(path[:depth]) for _, place in sides if len(path := place.split("/")) >= depth]
        return {each for each in paths if each and budget.of in ("", each)}
    names = {
        "cloud": ["the cloud"],
        "cell": [movement.cell],
        "project": [movement.project or "-"],
        "group": [str(movement.group)] if movement.group else [],
        "host": [f"{movement.cell}/{host}" for host, _ in sides if host],
    }[budget.scope]
    # A host is named with its cell or without.
    return {each for each in names if of in ("", each.lower(), each.lower().partition("/")[2])}


def is_claim_suspect(entry: CellEntry) -> bool:
    """Does the instance hold a claim of a move that confirms itself at once, as those of campaigns do?"""
    return (
        way_back_of(entry) is not None
        and entry.instance.move is not None
        and entry.instance.move.confirm_s == 0
    )


def faults_of_claims(
    suspects: Mapping[ConsumerId, CellEntry], movements: Iterable[Movement]
) -> Iterator[Fault]:
    """The claims of moves by which ended movements were made."""
    for each in movements:
        entry = suspects.get(each.instance)
        move = entry and entry.instance.move
        if each.life in _ENDED and move and move.request_id == each.request_id:
            yield Fault(
                CLAIM_LEFT,
                each.instance,
                f"instance {each.instance}: its movement from {each.cell}/{each.host} by {each.cause} is {each.life}, and it still holds the "
                "claim of that move",
                advice=f"`moor migration confirm {each.instance}` or `moor migration revert {each.instance}` ends its move",
                version=(each.life, each.ended_at, entry and entry.stirred_at),
            )
