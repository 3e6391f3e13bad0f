"""`moor audit` asks Ironic what its nodes have: instances that nobody has in the books, and instances that are gone there."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.audit import AskCellBooks
from bus.messages.placement import AskSnapshot, LogPosition, SnapshotPage
from engine.hosts import NODE
from engine.inventories import ConsumerId, ProviderId
from kit.errors import Unavailable
from moor.client.books.auditing import AuditOptions, AuditResult, audited
from moor.client.books.books_reader import BooksReader
from moor.client.books.instance_rules import LOST
from moor.client.books.rules import OF_NOBODY, STRAY_ON_NODE, NodeInIronic
from moor.client.books.views import InstanceView
from tests.properties.test_audit_properties import HOSTS, ID, NOW, PLACES, a_view
from tests.unit.moor.test_audit_run import Everyone

pytestmark = pytest.mark.asyncio

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


async def audit(
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
    found = (await audit(Books(view), nodes)).findings

    assert [each.fault.kind for each in found] == kinds
    for each in found:
        assert "moor node undeploy" in each.why or each.fault.kind == LOST


async def test_a_node_that_ironic_has_deployed_for_nobody_is_named_if_it_is_ours() -> None:
    nodes = on_nodes(own=ID, other=None, unknown=None)
    alone = {each.id: structs.replace(each, is_of_nobody=each.id != OWN) for each in nodes.values()}

    (finding,) = (await audit(Books(ACTIVE), alone)).findings
    assert (finding.fault.kind, finding.fault.about) == (OF_NOBODY, None)
    assert f"moor node undeploy {OTHER}" in finding.why
    books = Books(ACTIVE)
    books.foreign = (OTHER,)
    assert (await audit(books, alone)).findings == ()
    assert (await audit(Books(ACTIVE), alone, nodes)).findings == ()


async def test_what_passes_until_the_second_look_or_changed_lately_is_no_fault() -> None:
    stray = on_nodes(own=ID, other=STRANGER)
    assert (await audit(Books(ACTIVE), stray, IN_ORDER)).findings == ()
    assert (await audit(Books(ACTIVE), stray, stray, IN_ORDER)).findings == ()
    assert DELETED.at_api is not None
    lately = structs.replace(DELETED, at_api=structs.replace(DELETED.at_api, changed_at=NOW))
    assert (await audit(Books(lately), on_nodes(own=ID))).findings == ()


async def test_nodes_of_other_programs_other_cells_and_silent_cells_are_not_judged() -> None:
    stray = on_nodes(own=ID, other=STRANGER)
    books = Books(ACTIVE)
    books.foreign = (OTHER,)
    assert (await audit(books, stray)).findings == ()
    assert (await audit(Books(ACTIVE), stray, cell="c2")).findings == ()
    silent = await audit(Books(ACTIVE, silent=AskCellBooks), stray)
    assert silent.findings == ()
    assert len(silent.unanswered) == 2
