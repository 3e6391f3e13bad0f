"""One audit: it reads all books, looks a second time at whatever differs, and mends what still differs, if it is told to.

Nothing is stopped and nothing is locked. A fault counts only if both looks found it at the same versions of all rows. A
mend names what the second look saw; if that has changed, it does nothing. Afterwards a third look tells whether the fault
is gone.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from msgspec import Struct, structs

from bus.messages.audit import (
    NAMED_MAX,
    AskContradictions,
    CellEntry,
    ContradictionsFound,
    MendConsumer,
    MendInstance,
    RecountBooks,
)
from bus.messages.books import ConsumerMoved, Done, WriteAnswered, WriteVerdict
from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.cell import DestroyInstance, RemoveFromCell
from bus.messages.hosts import HostSet, SetHost
from bus.messages.keeping import (
    AskBudgets,
    AskMovements,
    BudgetsFound,
    BudgetState,
    Movement,
    MovementsFound,
)
from bus.messages.projects import AskGroups, GroupsFound
from bus.workers.connections import NoAnswer
from engine.flavors import InstanceId
from engine.hosts import NODE, HostState, host_in_cell
from engine.inventories import ConsumerId, GroupId, ProviderId
from engine.refusals import DoesNotFit, NotAllowed, broken_rule_in_words
from kit.errors import Operational
from kit.parts import batches_of
from moor.client.books.books_reader import BooksReader
from moor.client.books.instance_rules import (
    UNKNOWN,
    affinity_host_of,
    contradiction,
    faults_of,
    faults_of_group,
    faults_of_way_back,
    is_in_flight,
    own_entry,
    way_back_of,
    whereabouts,
)
from moor.client.books.rules import (
    HeldByNova,
    NeededClaims,
    NodeInIronic,
    NodesInIronic,
    NovaBooks,
    NovaToAsk,
    faults_alone,
    faults_of_budgets,
    faults_of_claims,
    faults_of_minimums,
    faults_of_movements,
    faults_on_nodes,
    is_claim_alone,
    is_claim_suspect,
    lost_from_node,
    nodes_of,
    of_nobody,
)
from moor.client.books.views import Fault, InstanceView, Mend, Places, Sight, name_clashes
from moor.client.bus_client import answer_of, items_of, providers_of
from moor.client.errors import Rejected

FOUND, MENDED, ORDERED, NOT_MENDED = "found", "mended", "ordered", "not mended"
# A second look names these instances, and at most two hosts of each.
LOOKED_AT_ONCE_MAX = NAMED_MAX // 2
MOVEMENTS_PAGE = 200
_STRAYS = "something runs there that no row knows: moor audit"
# Lists Ironic's nodes. It raises if Ironic does not answer.
ListsNodes = Callable[[], Awaitable[NodesInIronic]]
# Judges these consumers by what is seen of them now.
Judge = Callable[[Mapping[ConsumerId, InstanceView], Sight], Iterable[Fault]]
_CHANGED = "it has changed meanwhile: the next audit looks again"


class Finding(Struct, frozen=True):
    """A fault, and what became of it: found, mended, ordered (its cell or host mends it) or not mended, and why."""

    fault: Fault
    outcome: str = FOUND
    why: str = ""


class AuditResult(Struct, frozen=True, kw_only=True):
    """The result of one audit.

    `compared` is the number of instances and consumers that it looked at. `in_flight` of them were not judged: something
    about them is changing, or a cell of theirs did not answer. `unanswered` names the cells and hosts, or the Ironic, that did
    not answer.
    """

    compared: int
    in_flight: int
    findings: tuple[Finding, ...]
    unanswered: tuple[str, ...]
    # None if Nova holds nothing, and there is none to ask.
    nova: HeldByNova | None = None

    def problems(self) -> list[str]:
        """All that is wrong if the cloud is at rest: then nothing is in flight, and each cell answers."""
        return [
            *[each.fault.text for each in self.findings],
            *[f"{each} did not answer" for each in self.unanswered],
            *([f"Nova: {self.nova.problem}"] if self.nova and self.nova.problem else ()),
            *([f"{self.in_flight} instances are in flight"] if self.in_flight else ()),
        ]

    @property
    def is_all_mended(self) -> bool:
        return all(each.outcome in (MENDED, ORDERED) for each in self.findings)


class AuditOptions(Struct, frozen=True):
    """What an audit compares, and whether it mends faults (`heals`).

    With `cell`, it compares only instances of this cell; with `host`, only those on the host with this id. Changes within
    the last `settle` are in flight, and not judged. With `removes_strays`, hosts remove what no row knows. With `keepers`, movements and
    budgets are judged, too.
    """

    settle: timedelta
    heals: bool = False
    removes_strays: bool = False
    cell: str = ""
    host: ProviderId | None = None
    keepers: bool = False

    @property
    def is_of_all(self) -> bool:
        return not self.cell and self.host is None

    def concerns(self, view: InstanceView) -> bool:
        return (not self.cell or self.cell in view.cells()) and (
            self.host is None or self.host in view.hosts()
        )


class Audit:
    """Compares placement, the API level, cells and hosts. `tell` is called with each finding as soon as it is known."""

    def __init__(
        self,
        reader: BooksReader,
        options: AuditOptions,
        *,
        clock: Callable[[], datetime],
        places: Places,
        hosts: Sequence[HostState] = (),
        tell: Callable[[Finding], None] = lambda _: None,
        nova: NovaToAsk | None = None,
        ironic: ListsNodes | None = None,
    ) -> None:
        self._reader = reader
        self._ironic = ironic
        # As Ironic lists them at the beginning; and why it does not answer.
        self._nodes: NodesInIronic = {}
        self._ironic_away = ""
        # The nodes that have what the books expect there, and the instances that are not on the nodes of their rows.
        self._nodes_in_order: set[ProviderId] = set()
        self._lost_on_nodes: list[ConsumerId] = []
        # An audit of a part does not ask: Nova has cells and hosts of its own.
        self._nova = NovaBooks(reader, clock, nova if options.is_of_all else None)
        self._options = options
        self._clock = clock
        self._places = places
        self._hosts = {each.id: each for each in hosts}
        self._tell = tell
        self._findings: list[Finding] = []
        self._compared = 0
        self._in_flight = 0
        # Consumers of which no row has the id, and the instances that wait to be confirmed, with the consumers of their
        # migrations.
        self._alone: dict[ConsumerId, InstanceView] = {}
        self._needed = NeededClaims()
        self._ways_back: dict[ConsumerId, ConsumerId] = {}
        # The instances that hold a claim of a move that should have ended.
        self._holding: dict[ConsumerId, CellEntry] = {}
        self._keepers_away = ""
        # The members of each affinity group, with their hosts.
        self._groups: dict[GroupId, dict[ConsumerId, ProviderId]] = {}

    async def run(self) -> AuditResult:
        contradictions = await self._contradictions() if self._options.is_of_all else []
        if self._options.is_of_all:
            outcome = NOT_MENDED if self._options.heals else FOUND
            self._found(Finding(each, outcome, each.advice) for each in name_clashes([*self._hosts.values()]))
        await self._recount(contradictions)
        self._nodes = await self._list_nodes()
        async for views in self._reader.views():
            await self._compare(views)
        await self._compare_ways_back()
        await self._compare_groups()
        await self._compare_alone()
        await self._compare_nova()
        await self._compare_nodes()
        await self._compare_keeping()
        await self._conclude_tables(contradictions)
        return AuditResult(
            compared=self._compared,
            in_flight=self._in_flight,
            findings=tuple(self._findings),
            unanswered=(*self._reader.unanswered(), *filter(None, (self._ironic_away, self._keepers_away))),
            nova=self._nova.held,
        )

    def _found(self, findings: Iterable[Finding]) -> None:
        for each in findings:
            self._findings.append(each)
            self._tell(each)

    # Placement's own tables

    async def _conclude_tables(self, faults: Sequence[Fault]) -> None:
        """Report the contradictions in placement's tables that the audit found at its start.

        If the audit mends, it first has placement count again, and reports which of them that has mended. This comes
        last, after the instances: their mends end some contradictions, and may cause new ones.
        """
        if not faults or not self._options.heals:
            self._found(Finding(each) for each in faults)
            return
        await self._recount(await self._contradictions())
        left = {each.key for each in await self._contradictions()}
        why = "counting again does not mend it"
        self._found(
            Finding(each, NOT_MENDED, why) if each.key in left else Finding(each, MENDED, "counted again")
            for each in faults
        )

    async def _recount(self, faults: Sequence[Fault]) -> None:
        if faults and self._options.heals:
            await self._give(RecountBooks())

    async def _contradictions(self) -> list[Fault]:
        found = await answer_of(self._reader.api, AskContradictions(), ContradictionsFound)
        return [contradiction(text) for text in found.contradictions]

    # Instances

    async def _compare(self, views: Sequence[InstanceView]) -> None:
        sight = self._sight(None)
        suspects: list[tuple[InstanceView, list[Fault]]] = []
        for view in views:
            self._note_claims(view, sight)
            if is_claim_alone(view):
                self._alone[view.id] = view
                continue
            if not self._options.concerns(view):
                continue
            self._nova.note(view)
            self._note_nodes(view, sight)
            if (member := affinity_host_of(view, sight)) is not None:
                self._groups.setdefault(member[0], {})[view.id] = member[1]
            self._compared += 1
            self._in_flight += is_in_flight(view, sight)
            if faults := [*faults_of(view, sight, self._places)]:
                suspects.append((view, faults))
        for some in batches_of(suspects, LOOKED_AT_ONCE_MAX):
            ids = [view.id for view, _ in some]
            hosts = {each.host: None for view, _ in some for each in view.in_cells if each.host is not None}
            found = [fault for _, faults in some for fault in faults]
            await self._look_twice(found, partial(self._seen_now, ids, self._each(faults_of), tuple(hosts)))

    async def _seen_now(
        self, ids: Sequence[ConsumerId], judge: Judge, hosts: Sequence[ProviderId] = ()
    ) -> list[Fault]:
        """The faults of these consumers as they are now: the first look may have read one's rows before it changed, and others after."""
        views, asked = await self._reader.views_of(ids, hosts)
        return [*judge(views, self._sight(asked))]

    def _each(self, of_one: Callable[[InstanceView, Sight, Places], Iterable[Fault]]) -> Judge:
        return lambda views, sight: [
            fault for view in views.values() for fault in of_one(view, sight, self._places)
        ]

    def _sight(self, asked: frozenset[ProviderId] | None) -> Sight:
        return Sight(
            now=self._clock(),
            settle=self._options.settle,
            known=frozenset(self._reader.in_cell),
            cells=frozenset(self._reader.cells),
            computes=frozenset(self._reader.computes),
            asked=asked,
        )

    # Claims of other consumers

    def _note_claims(self, view: InstanceView, sight: Sight) -> None:
        self._needed.note(view, sight)
        if is_in_flight(view, sight) or not self._options.concerns(view):
            return
        for entry in view.in_cells:
            if (way_back := way_back_of(entry)) is not None:
                self._ways_back[entry.instance.id] = way_back.consumer
            if is_claim_suspect(entry):
                self._holding[entry.instance.id] = entry

    async def _compare_ways_back(self) -> None:
        for some in batches_of(sorted(self._ways_back.items()), LOOKED_AT_ONCE_MAX):
            ids = [each for pair in some for each in pair]
            look = partial(self._seen_now, ids, partial(self._of_ways_back, some))
            await self._look_twice(await look(), look)

    def _of_ways_back(
        self,
        pairs: Sequence[tuple[ConsumerId, ConsumerId]],
        views: Mapping[ConsumerId, InstanceView],
        sight: Sight,
    ) -> Iterator[Fault]:
        for instance, migration in pairs:
            if (view := views.get(instance)) is not None:
                back = views[migration].consumer if migration in views else None
                yield from faults_of_way_back(view, back, sight, self._places)

    async def _compare_groups(self) -> None:
        for members in [each for _, each in sorted(self._groups.items()) if len({*each.values()}) > 1]:
            look = partial(
                self._seen_now,
                [*members],
                lambda views, sight: faults_of_group(views.values(), sight, self._places),
            )
            await self._look_twice(await look(), look)

    async def _compare_alone(self) -> None:
        concerned = [view for _, view in sorted(self._alone.items()) if self._options.concerns(view)]
        suspects = [view for view in concerned if not self._needed.may_be_needed(view)]
        self._compared += len(concerned)
        sight = self._sight(None)
        for some in batches_of(suspects, LOOKED_AT_ONCE_MAX):
            found = [fault for view in some for fault in faults_alone(view, sight, self._places)]
            # The first look may have read a cell's row before a swap made a consumer of that cell.
            ids = [view.id for view in some]
            await self._look_twice(found, partial(self._seen_now, ids, self._each(faults_alone)))

    # Bare-metal nodes in Ironic

    async def _list_nodes(self) -> NodesInIronic:
        if self._ironic is None or self._ironic_away:
            return {}
        try:
            return await self._ironic()
        except Operational as problem:
            self._ironic_away = f"Ironic ({problem})"
            return {}

    def _note_nodes(self, view: InstanceView, sight: Sight) -> None:
        for node in nodes_of(view) & self._nodes.keys():
            if self._nodes[node].instance == view.id:
                self._nodes_in_order.add(node)
        if any(lost_from_node(view, self._nodes, sight, self._places)):
            self._lost_on_nodes.append(view.id)

    async def _compare_nodes(self) -> None:
        left = [each for node, each in self._nodes.items() if node not in self._nodes_in_order]
        strays = [each.instance for each in left if each.instance is not None and self._is_of_node(each.id)]
        for some in batches_of([*dict.fromkeys((*strays, *self._lost_on_nodes))], LOOKED_AT_ONCE_MAX):
            await self._look_twice(await self._on_nodes_now(some), partial(self._on_nodes_now, some))
        if any(each.is_of_nobody for each in left):
            await self._look_twice(await self._of_nobody_now(), self._of_nobody_now)

    async def _of_nobody_now(self) -> list[Fault]:
        nodes = (await self._list_nodes()).values()
        ours = {id_ for id_, each in self._places.providers.items() if each.cell}
        return [
            of_nobody(each)
            for each in nodes
            if each.is_of_nobody and each.id in ours and self._is_of_node(each.id)
        ]

    async def _on_nodes_now(self, ids: Sequence[ConsumerId]) -> list[Fault]:
        nodes = await self._list_nodes()
        return await self._seen_now(
            ids, lambda views, sight: faults_on_nodes(ids, views, nodes, sight, self._places)
        )

    def _is_of_node(self, node: ProviderId) -> bool:
        provider = self._places.providers.get(node)
        if provider is None:
            return self._options.is_of_all
        return self._options.cell in ("", provider.cell) and self._options.host in (None, provider.root)

    # What Nova holds

    async def _compare_nova(self) -> None:
        faults = await self._nova.faults(self._places, self._options.settle)
        self._in_flight += self._nova.in_flight
        await self._conclude(faults, partial(self._nova.left, faults))

    # What keepers have

    async def _compare_keeping(self) -> None:
        if not (self._options.keepers and self._options.is_of_all):
            return
        try:
            await self._look_twice(await self._keeping_now(), self._keeping_now)
        except NoAnswer:
            self._keepers_away = "the keeper"

    async def _keeping_now(self) -> list[Fault]:
        api = self._reader.api
        going = await items_of(
            api, AskMovements(limit=MOVEMENTS_PAGE), MovementsFound, lambda page: page.movements
        )
        budgets = await items_of(api, AskBudgets(), BudgetsFound, lambda page: page.budgets)
        rows = await self._instances([*dict.fromkeys(each.instance for each in going)])
        ended = [
            each
            for id_ in self._holding
            for each in await items_of(
                api,
                AskMovements(instance=InstanceId(id_), ended=True),
                MovementsFound,
                lambda page: page.movements,
            )
        ]
        return [
            *faults_of_movements(going, {each.id: each for each in rows}, self._sight(None)),
            *faults_of_budgets(budgets, going),
            *await self._minimums_now([each for each in budgets if each.budget.alive_min is not None], going),
            *faults_of_claims(self._holding, ended),
        ]

    async def _minimums_now(self, budgets: Sequence[BudgetState], going: Sequence[Movement]) -> list[Fault]:
        """The faults by budgets that have a minimum of active members."""
        api, found = self._reader.api, list[Fault]()
        for group in sorted({each.group for each in going if each.group}) if budgets else ():
            known = next(iter((await answer_of(api, AskGroups(id=group), GroupsFound)).groups), None)
            # A group that was deleted has no member left.
            if known is None:
                continue
            rows = await self._instances([InstanceId(each.consumer) for each in known.members])
            if not [*faults_of_minimums(budgets, group, going, rows)]:
                continue
            # Those that were deleted since are no members any more.
            deleted = AskInstances(project=known.project, state="deleted", limit=MOVEMENTS_PAGE)
            gone = await items_of(
                api, deleted, InstancesFound, lambda page: zip(page.instances, page.details, strict=True)
            )
            rows += [each for each, told in gone if told.group == group]
            found += faults_of_minimums(budgets, group, going, rows)
        return found

    async def _instances(self, ids: Sequence[InstanceId]) -> list[InstanceState]:
        return [
            each
            for some in batches_of(ids, MOVEMENTS_PAGE)
            for each in await items_of(
                self._reader.api,
                AskInstances(instances=tuple(some), limit=MOVEMENTS_PAGE),
                InstancesFound,
                lambda page: page.instances,
            )
        ]

    # Mending

    async def _look_twice(
        self, found: Iterable[Fault], look: Callable[[], Awaitable[Sequence[Fault]]]
    ) -> None:
        """Look a second time. Report or mend the faults that are still there in rows that did not change meanwhile."""
        before = {each.key: each.version for each in found}
        if before:
            again = await look()
            await self._conclude([each for each in again if before.get(each.key) == each.version], look)

    async def _conclude(
        self, faults: Sequence[Fault], look: Callable[[], Awaitable[Sequence[Fault]]]
    ) -> None:
        if not faults or not self._options.heals:
            self._found(Finding(each, FOUND, each.advice) for each in faults)
            return
        if self._options.removes_strays:
            faults = [_with_removal(each) for each in faults]
        for each in faults:
            await self._keep_free(each)
        given: list[Mend] = []
        refused: dict[int, str] = {}
        for mend in [each.mend for each in faults if each.mend is not None]:
            # Several faults of an instance have the same mend.
            if mend not in given:
                refused[len(given)] = await self._give(mend)
                given.append(mend)
        left = {each.key for each in await look()} if given else set()
        self._found(self._outcome(each, given, refused, left) for each in faults)

    def _outcome(
        self, fault: Fault, given: Sequence[Mend], refused: Mapping[int, str], left: Collection[object]
    ) -> Finding:
        if fault.mend is None:
            return Finding(fault, NOT_MENDED, f"{fault.advice}{self._kept_free(fault)}")
        if why := refused[given.index(fault.mend)]:
            return Finding(fault, NOT_MENDED, why)
        if isinstance(fault.mend, RemoveFromCell | DestroyInstance):
            return Finding(fault, ORDERED, mend_in_words(fault.mend))
        if fault.key in left:
            return Finding(fault, NOT_MENDED, "it came back: the next audit looks again")
        return Finding(fault, MENDED, mend_in_words(fault.mend))

    async def _keep_free(self, fault: Fault) -> None:
        """Have nothing new built where something runs whose room placement would give away, until somebody has decided about it."""
        host = None if fault.unheld is None else self._hosts.get(fault.unheld.entry.host)
        if fault.mend is None and host is not None and host.setting.mode == "up":
            order = SetHost(host=host_in_cell(host.cell, host.name), mode="draining", reason=_STRAYS)
            # It may be gone by now.
            with suppress(Rejected):
                self._hosts[host.id] = (await answer_of(self._reader.api, order, HostSet)).host

    def _kept_free(self, fault: Fault) -> str:
        host = None if fault.unheld is None else self._hosts.get(fault.unheld.entry.host)
        if host is None or host.setting.mode != "draining":
            return ""
        return f"; {host_in_cell(host.cell, host.name)} is draining: set it up when that is decided"

    async def _give(self, mend: Mend) -> str:
        """Send the order that mends a fault. Returns why it was refused, or nothing."""
        match mend:
            case MendConsumer() | RecountBooks():
                answer = await answer_of(self._reader.api, mend, WriteAnswered)
                return _refusal(answer.verdict, self._places)
            case MendInstance():
                found = await answer_of(self._reader.api, mend, InstancesFound)
                is_done = any(each.sequence > mend.seen for each in found.instances)
                return "" if is_done else _CHANGED
            case RemoveFromCell() | DestroyInstance():
                await self._reader.in_cell[mend.cell].send(mend)
                return ""


async def audited(
    reader: BooksReader,
    options: AuditOptions,
    tell: Callable[[Finding], None] = lambda _: None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    *,
    hosts: Sequence[HostState] = (),
    nova: NovaToAsk | None = None,
    ironic: ListsNodes | None = None,
) -> AuditResult:
    """Without `nova`, what Nova holds is counted, and not judged. Without `ironic`, nobody is asked what nodes have."""
    places = Places({each.id: each for each in await providers_of(reader.api)})
    audit = Audit(
        reader, options, clock=clock, places=places, hosts=hosts, tell=tell, nova=nova, ironic=ironic
    )
    return await audit.run()


async def why_no_strays(
    reader: BooksReader, nodes: Sequence[NodeInIronic], settle: timedelta
) -> dict[ConsumerId, str]:
    """For each instance on these nodes that somebody has in the books, or may have: who."""
    places = Places({each.id: each for each in await providers_of(reader.api)})
    ids = [each.instance for each in nodes if each.instance is not None]
    views, asked = await reader.views_of(ids, ())
    sight = Sight(
        now=datetime.now(UTC),
        settle=settle,
        known=frozenset(reader.in_cell),
        cells=frozenset(reader.cells),
        computes=frozenset(reader.computes),
        asked=asked,
    )
    seen = {each.id: each for each in nodes}
    strays = {each.about for each in faults_on_nodes(ids, views, seen, sight, places)}
    return {
        each.instance: _why_no_stray(each, each.instance, views, places)
        for each in nodes
        if each.instance is not None and each.instance not in strays
    }


def _why_no_stray(
    node: NodeInIronic, instance: ConsumerId, views: Mapping[ConsumerId, InstanceView], places: Places
) -> str:
    view = views.get(instance)
    if view is None:
        return "and Ironic works on the node, its cell does not answer, or another program keeps the node's provider"
    where = whereabouts(view, own_entry(view), places)
    if node.id in nodes_of(view):
        return f"and {where}; `moor delete {instance}` takes it off"
    return f"and {where}, which may be about to change: try again later"


def with_computes(hosts: Iterable[HostState]) -> frozenset[str]:
    """The cells in which a compute controls hypervisors. Bare-metal nodes are Ironic's, and no compute has them."""
    return frozenset(each.cell for each in hosts if each.kind != NODE)


def _with_removal(fault: Fault) -> Fault:
    """The fault with the order to remove a stray that no row knows."""
    if fault.unheld is None or fault.advice != UNKNOWN:
        return fault
    at = fault.unheld.entry
    order = DestroyInstance(cell=fault.unheld.cell, instance=at.instance, attempt=at.attempt, host=at.host)
    return structs.replace(fault, mend=order)


def _refusal(verdict: WriteVerdict, places: Places) -> str:
    match verdict:
        case Done():
            return ""
        case ConsumerMoved():
            return _CHANGED
        case DoesNotFit():
            short = [
                f"{each.resource} of {places.name(each.provider)}: asked {each.asked}, free {max(each.free, 0)}"
                + broken_rule_in_words(each)
                for each in verdict.shortfalls
            ]
            return f"no room: {'; '.join(short)}"
        case NotAllowed():
            return f"{verdict.field}: {verdict.reason}"
        case _:
            fields = ", ".join(f"{field} {getattr(verdict, field)}" for field in verdict.__struct_fields__)
            return f"{verdict.__struct_config__.tag}: {fields}"


def mend_in_words(mend: Mend) -> str:
    match mend:
        case MendConsumer(claim=None):
            return "everything that it held is free"
        case MendConsumer():
            return "placement has it as its cell does"
        case MendInstance():
            return "the API level has it as its cell does"
        case RecountBooks():
            return "counted again"
        case RemoveFromCell():
            return f"cell {mend.cell} deletes it"
        case DestroyInstance():
            return "the host removes it"
