"""One audit: it names the cells that do not answer, drops faults that pass, says why a mend is refused; and asks Ironic what its nodes have: instances
that nobody has in the books, and instances that are gone there.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.audit import (
    AskBooks,
    AskCellBooks,
    AskContradictions,
    AskHostBooks,
    BooksFound,
    CellBooksFound,
    ContradictionsFound,
    HostBooksFound,
    HostEntry,
    MendConsumer,
)
from bus.messages.books import ConsumerMoved, Done, WriteAnswered, WriteVerdict
from bus.messages.build import AskInstances, InstanceDetails, InstancesFound, Size
from bus.messages.cell import DestroyInstance
from bus.messages.hosts import HostSet, SetHost
from bus.messages.keeping import (
    AskBudgets,
    AskMovements,
    BudgetsFound,
    BudgetState,
    CampaignId,
    MoveBudget,
    Movement,
    MovementId,
    MovementsFound,
)
from bus.messages.placement import AskSnapshot, LogPosition, SnapshotPage
from bus.workers.connections import NoAnswer
from engine.flavors import InstanceId
from engine.hosts import NODE, HostMode, HostSetting, HostState
from engine.inventories import ConsumerId, ProviderId
from engine.refusals import DoesNotFit, Shortfall
from kit.errors import Unavailable
from moor.client.books import instance_rules, rules
from moor.client.books.auditing import AuditOptions, AuditResult, audited, why_no_strays
from moor.client.books.books_reader import NEW_S, BooksReader
from moor.client.books.instance_rules import LOST
from moor.client.books.rules import NOTHING_MOVES, OF_NOBODY, OVER_BUDGET, STRAY_ON_NODE, NodeInIronic
from moor.client.books.views import InstanceView, OnHost
from moor.client.bus_client import as_received
from tests.narrowing import present
from tests.properties.test_audit_properties import AMOUNTS, HOSTS, ID, NOW, PLACES, a_view


def a_consumer(**changes: object) -> InstanceView:
    view = a_view()
    return structs.replace(view, consumer=structs.replace(present(view.consumer), **changes))


HARMED = a_consumer(user="bob")
HOST = HostState(id=HOSTS[0], name="h-1", cell="c1", up=True)
INSTANCE = InstanceId(HARMED.id)
SHORT = Shortfall(provider=HOSTS[0], resource="VCPU", asked=2, free=1)


class Everyone:
    """Answers for all of them, from the views as they are at each look; and takes only questions that a receiver could read."""

    def __init__(
        self,
        *looks: InstanceView | Sequence[InstanceView],
        verdict: WriteVerdict | None = None,
        silent: type[Message] | None = None,
    ) -> None:
        self._looks = [[each] if isinstance(each, InstanceView) else each for each in looks]
        self._looked = 0
        self._verdict = verdict or Done()
        self._silent = silent
        self.given: list[Message] = []

    async def ask(self, question: Message) -> Message:  # noqa: PLR0911 - one for each question
        if self._silent is not None and isinstance(question, self._silent):
            raise NoAnswer("nobody answers")
        asked = as_received(question)
        # Each look begins with the question to placement.
        self._looked += isinstance(asked, AskBooks)
        views = self._looks[max(0, min(self._looked, len(self._looks)) - 1)]
        named = asked.consumers if isinstance(asked, AskBooks) else getattr(asked, "instances", ())
        views = [each for each in views if not named or each.id in named]
        match asked:
            case AskBooks():
                # Placement marks a claim as new only if it is asked how new.
                consumers = [each.consumer for each in views if each.consumer]
                return BooksFound(
                    consumers=tuple(
                        each if asked.new_s else structs.replace(each, is_new=False) for each in consumers
                    )
                )
            case AskInstances():
                return InstancesFound(
                    instances=tuple(each.at_api for each in views if each.at_api),
                    details=tuple(each.details for each in views if each.details),
                )
            case AskCellBooks():
                entries = [entry for each in views for entry in each.in_cells]
                return CellBooksFound(
                    entries=tuple(each for each in entries if each.instance.cell == asked.cell)
                )
            case AskHostBooks():
                there = tuple(on.entry for each in views for on in each.on_hosts if on.cell == asked.cell)
                return HostBooksFound(entries=there, asked=asked.hosts)
            case AskContradictions():
                return ContradictionsFound(contradictions=())
            case AskSnapshot():
                return SnapshotPage(providers=tuple(PLACES.providers.values()), published=LogPosition(0, 0))
            case MendConsumer():
                self.given.append(asked)
                return WriteAnswered(verdict=self._verdict)
            case SetHost():
                self.given.append(asked)
                return HostSet(host=structs.replace(HOST, setting=HostSetting(mode=asked.mode)))
            case _:
                raise AssertionError(asked)

    async def send(self, message: Message) -> None:
        self.given.append(message)


async def audit(
    everyone: Everyone,
    *,
    heals: bool = False,
    cell: str = "",
    new_s: int = NEW_S,
    host: HostState | None = None,
    removes_strays: bool = False,
) -> AuditResult:
    reader = BooksReader(everyone, dict.fromkeys(("c1", "c2"), everyone), ("c1", "c2"), new_s)
    options = AuditOptions(settle=timedelta(minutes=1), heals=heals, removes_strays=removes_strays, cell=cell)
    return await audited(reader, options, clock=lambda: NOW, hosts=(host,) if host else ())


ONE_AT_ONCE = MoveBudget(name="one", scope="cloud", at_once=1)


class Keeping(Everyone):
    """A keeper has movements of instances that are nowhere, as they are at each look, and a budget."""

    def __init__(self, *looks: tuple[Movement, ...], silent: type[Message] | None = None) -> None:
        super().__init__(a_view(), silent=silent)
        self._movements = [*looks]

    async def ask(self, question: Message) -> Message:
        match question:
            case AskBudgets():
                return BudgetsFound(budgets=(BudgetState(budget=ONE_AT_ONCE),))
            case AskMovements() if not self._silent:
                found = self._movements[0] if len(self._movements) == 1 else self._movements.pop(0)
                return MovementsFound(movements=found)
        return await super().ask(question)


async def test_movements_are_judged_twice_and_a_keeper_that_does_not_answer_is_named() -> None:
    lost = Movement(
        id=MovementId(UUID(int=1)),
        instance=InstanceId(ConsumerId(UUID(int=404))),
        campaign=CampaignId(UUID(int=3)),
        cause="campaign kernel",
        cell="c1",
        host="h-1",
    )
    options = AuditOptions(settle=timedelta(minutes=1), keepers=True)
    going = structs.replace(lost, life="moving", granted_at=NOW)
    told = []
    for everyone in (
        Keeping((lost,)),
        Keeping((lost,), ()),
        Keeping((going, going)),
        Keeping((lost,), silent=AskMovements),
    ):
        reader = BooksReader(everyone, dict.fromkeys(("c1", "c2"), everyone), ("c1", "c2"))
        result = await audited(reader, options, clock=lambda: NOW)
        told.append((sorted({each.fault.kind for each in result.findings}), result.unanswered))

    assert told == [
        ([NOTHING_MOVES], ()),
        ([], ()),
        ([OVER_BUDGET, NOTHING_MOVES], ()),
        ([], ("the keeper",)),
    ]


async def test_a_fault_counts_if_both_looks_see_the_same_rows() -> None:
    stands = await audit(Everyone(HARMED))
    moved = a_consumer(user="bob", generation=2, attempt=2)
    passes = [await audit(Everyone(HARMED, later)) for later in (a_view(), moved)]

    assert [each.fault.kind for each in stands.findings] == [instance_rules.USER]
    assert [each.findings for each in passes] == [(), ()]


@pytest.mark.parametrize(
    ("heals", "mode", "set_to"),
    [(False, "up", []), (True, "up", ["draining"]), (True, "draining", []), (True, "dead", [])],
)
async def test_where_something_runs_that_no_row_knows_nothing_new_is_built_until_somebody_decides(
    *, heals: bool, mode: HostMode, set_to: list[str]
) -> None:
    on_hosts = tuple(OnHost("c1", HostEntry(INSTANCE, HOST.id, attempt)) for attempt in (1, 2))
    everyone = Everyone(InstanceView(id=INSTANCE, on_hosts=on_hosts))

    result = await audit(everyone, heals=heals, host=structs.replace(HOST, setting=HostSetting(mode=mode)))

    assert [each.fault.kind for each in result.findings] == [instance_rules.STRAY] * 2
    assert [(each.host, each.mode) for each in everyone.given if isinstance(each, SetHost)] == [
        ("c1/h-1", each) for each in set_to
    ]
    if heals:
        assert {each.outcome for each in result.findings} == {"not mended"}
        assert ("c1/h-1 is draining" in result.findings[0].why) == (mode in ("up", "draining"))


async def test_a_host_keeps_its_mode_if_placement_holds_the_room_of_what_runs_there() -> None:
    held = a_view()
    there = HostEntry(held.id, HOSTS[0], present(held.consumer).attempt)
    everyone = Everyone(structs.replace(held, in_cells=(), on_hosts=(OnHost("c1", there),)))

    result = await audit(everyone, heals=True, host=HOST)

    assert instance_rules.STRAY in [each.fault.kind for each in result.findings]
    assert everyone.given == []


async def test_what_no_row_knows_is_removed_from_its_host_if_the_operator_says_so() -> None:
    stray = OnHost("c1", HostEntry(INSTANCE, HOST.id, 1))
    everyone = Everyone(InstanceView(id=INSTANCE, on_hosts=(stray,)))

    (finding,) = (await audit(everyone, heals=True, removes_strays=True, host=HOST)).findings

    assert everyone.given == [DestroyInstance(cell="c1", instance=INSTANCE, attempt=1, host=HOST.id)]
    assert (finding.outcome, finding.why) == ("ordered", "the host removes it")


@pytest.mark.parametrize("lost", [{"in_cells": ()}, {"at_api": None}], ids=["cell's row", "API level's row"])
async def test_what_a_row_knows_is_never_removed_as_a_stray(lost: dict[str, Any]) -> None:
    elsewhere = OnHost("c1", HostEntry(INSTANCE, HOST.id, 9))
    view = structs.replace(a_view(), consumer=None, on_hosts=(elsewhere,), **lost)
    everyone = Everyone(view)

    result = await audit(everyone, heals=True, removes_strays=True, host=HOST)

    assert instance_rules.STRAY in [each.fault.kind for each in result.findings]
    assert not [each for each in everyone.given if not isinstance(each, SetHost)]


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (DoesNotFit(shortfalls=(SHORT,)), "no room: VCPU of host-100: asked 2, free 1"),
        (
            ConsumerMoved(consumer=HARMED.id, seen=1, current=2),
            "it has changed meanwhile: the next audit looks again",
        ),
    ],
)
async def test_a_mend_that_is_refused_says_why(verdict: WriteVerdict, why: str) -> None:
    result = await audit(Everyone(HARMED, verdict=verdict), heals=True)

    assert [(each.outcome, each.why) for each in result.findings] == [("not mended", why)]
    assert not result.is_all_mended


@pytest.mark.parametrize(
    ("silent", "unanswered", "harm"),
    [
        (AskCellBooks, ["the conductor of cell c1", "the conductor of cell c2"], lambda view: view),
        (
            AskHostBooks,
            ["the compute of cell c1", "the compute of cell c2"],
            lambda view: structs.replace(view, on_hosts=()),
        ),
    ],
)
async def test_who_does_not_answer_is_named_and_nothing_of_theirs_is_judged(
    silent: type[Message], unanswered: list[str], harm: Callable[[InstanceView], InstanceView]
) -> None:
    view = harm(HARMED if silent is AskCellBooks else a_view())

    result = await audit(Everyone(view, silent=silent), heals=True)

    assert (result.findings, list(result.unanswered)) == ((), unanswered)
    assert result.in_flight == (silent is AskCellBooks)


async def test_a_new_claim_without_a_row_is_a_fault_only_when_nothing_is_under_way() -> None:
    """Its row may still come, if its request is delivered again. So it is of an instance, and of a migration."""
    for kind, fault in (("INSTANCE", instance_rules.ORPHAN), ("MIGRATION", rules.LEAK)):
        alone = a_consumer(is_new=True, type=kind)
        everyone = Everyone(structs.replace(alone, at_api=None, in_cells=(), on_hosts=()))

        usual = await audit(everyone)
        at_rest = await audit(everyone, new_s=0)

        assert usual.findings == ()
        assert [each.fault.kind for each in at_rest.findings] == [fault]


@pytest.mark.parametrize("state", ["active", "moved"])
async def test_a_claim_for_another_size_than_the_row_asks_for_is_named_and_left_alone(state: str) -> None:
    larger = InstanceDetails(
        id=HARMED.id, size=Size(flavor="web", amounts={**AMOUNTS, "MEMORY_MB": 4096, "VGPU": 1})
    )
    everyone = Everyone(structs.replace(a_view(state), details=larger))

    found = await audit(everyone, heals=True)

    (finding,) = found.findings
    assert (finding.fault.kind, finding.outcome) == (instance_rules.SIZE, "not mended")
    assert (
        "is for 5 DISK_GB, 512 MEMORY_MB, 2 VCPU, and its flavor web asks for 5 DISK_GB, 4096 MEMORY_MB, 2 VCPU, 1 VGPU"
    ) in finding.fault.text
    assert everyone.given == []


def a_member(number: int, on: int) -> InstanceView:
    text = msgspec.json.encode(a_view(on=on, grouped=True)).decode()
    return msgspec.json.decode(text.replace(str(HARMED.id), str(UUID(int=number))), type=InstanceView)


async def test_a_split_affinity_group_may_have_more_members_than_one_question_names() -> None:
    many = Everyone(
        [*(a_member(number, 0) for number in range(1, 301)), *(a_member(301, 1), a_member(302, 1))]
    )
    reader = BooksReader(many, {"c1": many}, ("c1",))

    result = await audited(reader, AuditOptions(settle=timedelta(minutes=1)), clock=lambda: NOW)

    found = [(each.fault.kind, each.fault.about) for each in result.findings]
    assert found == [(instance_rules.SPLIT, ConsumerId(UUID(int=number))) for number in (301, 302)]


async def test_why_no_strays_may_be_asked_of_more_nodes_than_one_question_names() -> None:
    views = [a_member(number, 0) for number in range(1, 301)]
    many = Everyone(views)
    nodes = [NodeInIronic(HOSTS[0], "n", "active", each.id, is_busy=False) for each in views]

    told = await why_no_strays(BooksReader(many, {"c1": many}, ("c1",)), nodes, timedelta(minutes=1))

    assert len(told) == 300


STRANGER = ConsumerId(UUID(int=404))
OWN, OTHER = HOSTS[:2]
UNKNOWN = ProviderId(UUID(int=405))


class Books(Everyone):
    """Books in which the providers of nodes are ours, but those of `foreign` ones."""

    foreign: Sequence[ProviderId] = ()

    async def ask(self, question: Message) -> Message:
        if isinstance(question, AskSnapshot):
            providers = [
                structs.replace(each, cell="" if each.id in self.foreign else "c1")
                for each in PLACES.providers.values()
            ]
            return SnapshotPage(providers=tuple(providers), published=LogPosition(0, 0))
        return await super().ask(question)


def on_nodes(*, busy: bool = False, **instances: ConsumerId | None) -> Mapping[ProviderId, NodeInIronic]:
    ids = {"own": OWN, "other": OTHER, "unknown": UNKNOWN}
    return {
        ids[name]: NodeInIronic(ids[name], name, "deleting" if busy else "active", instance, busy)
        for name, instance in instances.items()
    }


def on_node(view: InstanceView) -> InstanceView:
    """The instance is bare metal: no compute has it."""
    rows = tuple(structs.replace(each, kind=NODE) for each in view.in_cells)
    return structs.replace(view, in_cells=rows, on_hosts=())


async def audit_nodes(
    books: Books, *looks: Mapping[ProviderId, NodeInIronic], cell: str = "", away: bool = False
) -> AuditResult:
    left = [*looks]

    async def nodes() -> Mapping[ProviderId, NodeInIronic]:
        if away:
            raise Unavailable("Ironic at http://ironic cannot be reached")
        return left.pop(0) if len(left) > 1 else left[0]

    reader = BooksReader(books, dict.fromkeys(("c1", "c2"), books), ())
    options = AuditOptions(settle=timedelta(minutes=1), cell=cell)
    return await audited(reader, options, clock=lambda: NOW, ironic=nodes)


ACTIVE, DELETED = on_node(a_view()), structs.replace(on_node(a_view("deleted")), consumer=None)
IN_ORDER = on_nodes(own=ID, other=None)


@pytest.mark.parametrize(
    ("view", "nodes", "kinds"),
    [
        pytest.param(ACTIVE, IN_ORDER, [], id="in order"),
        pytest.param(ACTIVE, on_nodes(own=ID, other=STRANGER), [STRAY_ON_NODE], id="nobody has it"),
        pytest.param(ACTIVE, on_nodes(own=ID, unknown=STRANGER), [STRAY_ON_NODE], id="no provider"),
        pytest.param(DELETED, on_nodes(own=ID), [STRAY_ON_NODE], id="deleted in the books"),
        pytest.param(ACTIVE, on_nodes(own=None, other=ID), [STRAY_ON_NODE, LOST], id="on another node"),
        pytest.param(
            ACTIVE, on_nodes(own=STRANGER), [STRAY_ON_NODE, LOST], id="another instance on its node"
        ),
        pytest.param(ACTIVE, on_nodes(own=None), [LOST], id="no instance on its node"),
        pytest.param(ACTIVE, on_nodes(other=None), [], id="a node of another Ironic"),
        pytest.param(ACTIVE, on_nodes(busy=True, own=None, other=STRANGER), [], id="Ironic works on them"),
        pytest.param(on_node(a_view("building")), on_nodes(own=None), [], id="it is being deployed"),
    ],
)
async def test_what_ironic_has_is_compared_with_the_books(
    view: InstanceView, nodes: Mapping[ProviderId, NodeInIronic], kinds: list[str]
) -> None:
    found = (await audit_nodes(Books(view), nodes)).findings

    assert [each.fault.kind for each in found] == kinds
    for each in found:
        assert "moor node undeploy" in each.why or each.fault.kind == LOST


async def test_a_node_that_ironic_has_deployed_for_nobody_is_named_if_it_is_ours() -> None:
    nodes = on_nodes(own=ID, other=None, unknown=None)
    alone = {each.id: structs.replace(each, is_of_nobody=each.id != OWN) for each in nodes.values()}

    (finding,) = (await audit_nodes(Books(ACTIVE), alone)).findings
    assert (finding.fault.kind, finding.fault.about) == (OF_NOBODY, None)
    assert f"moor node undeploy {OTHER}" in finding.why
    books = Books(ACTIVE)
    books.foreign = (OTHER,)
    assert (await audit_nodes(books, alone)).findings == ()
    assert (await audit_nodes(Books(ACTIVE), alone, nodes)).findings == ()


async def test_what_passes_until_the_second_look_or_changed_lately_is_no_fault() -> None:
    stray = on_nodes(own=ID, other=STRANGER)
    assert (await audit_nodes(Books(ACTIVE), stray, IN_ORDER)).findings == ()
    assert (await audit_nodes(Books(ACTIVE), stray, stray, IN_ORDER)).findings == ()
    lately = structs.replace(DELETED, at_api=structs.replace(present(DELETED.at_api), changed_at=NOW))
    assert (await audit_nodes(Books(lately), on_nodes(own=ID))).findings == ()


async def test_nodes_of_other_programs_other_cells_and_silent_cells_are_not_judged() -> None:
    stray = on_nodes(own=ID, other=STRANGER)
    books = Books(ACTIVE)
    books.foreign = (OTHER,)
    assert (await audit_nodes(books, stray)).findings == ()
    assert (await audit_nodes(Books(ACTIVE), stray, cell="c2")).findings == ()
    silent = await audit_nodes(Books(ACTIVE, silent=AskCellBooks), stray)
    assert silent.findings == ()
    assert len(silent.unanswered) == 2
