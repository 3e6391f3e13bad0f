"""What orders make of a node's row: accepted, refused, answered again, and never done twice."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import InstanceDestroyed, InstanceRedeployed, InstanceSpawned, SpawnFailed
from engine.flavors import InstanceId
from engine.hosts import NODE
from engine.inventories import ConsumerId
from ironic_sync.core.deploying import Finish, Gone, ended
from ironic_sync.core.node import PROVISION_STATES, Node
from ironic_sync.core.offers import CellMap
from ironic_sync.core.rows import AT_ONCE, Alarms, Answer, Deployed, Ended, NodeRow, Rebuilt
from ironic_sync.core.settling import (
    ENDED_MAX,
    NO_API,
    NODE_DELETED,
    NodePolicy,
    Order,
    after_change,
    after_order,
    answered,
    node_words,
    power_news,
    settled,
    why_not_unasked,
    with_end,
    with_leftover,
    with_lost_instance,
    with_rebuilt,
)
from tests.unit.ironic.captured import NODE_ID, a_node
from tests.unit.ironic.deploys import (
    OURS,
    THEIRS,
    a_deploy,
    a_leave,
    a_rebuild,
    a_redeploy,
    an_adoption,
    an_order,
    an_undeploy,
    redeployed,
)

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
POLICY = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)
ACTIVE = Deployed(cell="c1", instance=OURS, attempt=1)
# Ironic may be restored from an older backup: then it tells of a node what is not so any more.
LIVING = structs.replace(ACTIVE, attempt=2)


def a_row(**fields: Any) -> NodeRow:
    return NodeRow(**{"id": NODE_ID, "version": 3, "cell": "c1", "node": a_node(), **fields})


def after(row: NodeRow, order: Order) -> tuple[NodeRow, Answer | None]:
    return after_order(row, order, NOON, can_deploy=True)


# An order, or what else becomes of the row; what is answered (a text: the reason of a refusal); and what the row says then, None: the same.
Happening = Order | Callable[[NodeRow], NodeRow]
Step = tuple[Happening, Answer | str | None, dict[str, object] | None]
DEPLOYING = a_deploy(started_at=NOON, due_at=AT_ONCE)
UNDEPLOYING = a_deploy(kind="undeploy", started_at=NOON, due_at=AT_ONCE)
REBUILDING = a_rebuild(started_at=NOON, due_at=AT_ONCE)
ON_NODE = a_node(provision_state="active", instance_uuid=OURS)
OF_THEIRS = a_deploy(instance=THEIRS)
OVER = (Ended(instance=OURS, attempt=1),)
WITH_ACTIVE = a_row(deployed=ACTIVE, node=ON_NODE)
# Adoption: by the row alone.
THERE = a_node(provision_state="active", instance_uuid=OURS, provision_updated_at=NOON)
ADOPTED = structs.replace(ACTIVE, active_at=NOON)


def destroyed(attempt: int = 1, instance: InstanceId = OURS) -> InstanceDestroyed:
    return InstanceDestroyed(cell="c1", instance=instance, attempt=attempt, host=NODE_ID)


def freed(row: NodeRow) -> NodeRow:
    return structs.replace(row, node=a_node())


def settle(row: NodeRow) -> NodeRow:
    return settled(row, POLICY)


LEFTOVER = a_row(node=a_node(instance_uuid=OURS), ended=(Ended(instance=OURS, attempt=4),))
TAKEN_OFF = structs.replace(UNDEPLOYING, attempt=4, is_leftover=True, started_at=None)
# Ironic may have received a request of an abandoned deploy late; these are no leftovers.
NO_LEFTOVERS: dict[str, dict[str, object]] = {
    "nothing of it has ended": {"ended": ()},
    "another instance is there": {"node": a_node(instance_uuid=THEIRS)},
    "no instance is there": {"node": a_node()},
    "another attempt of it is active": {"deployed": ACTIVE},
    "a later attempt of it lives": {"deployed": structs.replace(ACTIVE, attempt=5)},
    "an order is under way": {"deploy": OF_THEIRS},
    "the node is deleted": {"is_deleted": True},
    "there is no node": {"node": None},
    "its owner has not read it": {"epoch": 2},
    # Ironic may be restored from a backup, and know nothing of what lives there.
    "Ironic was restored": {"older_than": NOON},
}
WITH_OURS = NodeRow(id=NODE_ID, version=3, cell="c1", node=a_node(instance_uuid=OURS), deployed=ACTIVE)
LOST = SpawnFailed(cell="c1", instance=OURS, attempt=1, host=NODE_ID, reason=NODE_DELETED, number=1)
AGAIN_ON_ITS_NODE = InstanceSpawned(cell="c1", instance=OURS, attempt=1, host=NODE_ID, number=2, kind=NODE)
WAS_GONE = Rebuilt(number=1, failure="the node is deleted in Ironic", is_active=False)
BACK = a_row(node=ON_NODE, deployed=structs.replace(ACTIVE, gone_or_back=1, rebuilt=WAS_GONE))
NOT_BEYOND_DOUBT: dict[str, dict[str, object]] = {
    "it is still deleted": {"is_deleted": True},
    "a doubt": {"doubts": ("a doubt",)},
    "it is doubted": {"is_doubted": True},
    "it is missing": {"missing_since_us": 1},
    "another instance is there": {"node": a_node(provision_state="active", instance_uuid=THEIRS)},
    "no instance is there": {"node": a_node()},
    "its deploy failed": {"node": a_node(instance_uuid=OURS, provision_state="deploy failed")},
    "an order is under way": {"deploy": a_deploy(kind="undeploy")},
}
OF_IRONIC = a_node(provision_state="active", instance_uuid=THEIRS)
ENDED_THERE = (Ended(instance=THEIRS, attempt=1), Ended(instance=OURS, attempt=1))
IN_DISCORD = f"instance {OURS} lives here by the books, and Ironic has"


def is_deleted(row: NodeRow) -> NodeRow:
    return structs.replace(row, is_deleted=True)


def finished(step: Finish | Gone) -> Callable[[NodeRow], NodeRow]:
    def finish(row: NodeRow) -> NodeRow:
        assert row.deploy is not None
        return ended(row, row.deploy, step, row.node)[0]

    return finish


CASES: dict[str, tuple[NodeRow, list[Step]]] = {
    "a deploy is written on the row and comes again without a change": (
        a_row(),
        [(an_order(), None, {"deploy": DEPLOYING}), (an_order(), None, None)],
    ),
    "a deploy that was done is answered again": (
        WITH_ACTIVE,
        [
            (
                an_order(),
                InstanceSpawned(cell="c1", instance=OURS, attempt=1, host=NODE_ID, kind="ironic"),
                None,
            )
        ],
    ),
    "what was refused stays refused when the node is free again": (
        a_row(node=a_node(maintenance=True)),
        [
            (an_order(), "the node is in maintenance", {"deploy": None}),
            (freed, None, {"node": a_node()}),
            (an_order(), "the node is in maintenance", None),
            (
                an_order(attempt=2),
                None,
                {"deploy": structs.replace(DEPLOYING, order=an_order(attempt=2), attempt=2)},
            ),
        ],
    ),
    "a node in doubt is left to its owner to find out": (
        a_row(node=a_node(maintenance=True), doubts=("a doubt",)),
        [(an_order(), None, {"deploy": DEPLOYING})],
    ),
    "a deploy of an attempt that was undeployed is refused and a later one is not": (
        a_row(),
        [
            (an_undeploy(attempt=2), destroyed(2), {"deploy": None}),
            (an_order(), "attempt 2 of the instance is over here, and this is attempt 1", None),
            (an_order(attempt=2), "was undeployed", None),
            (
                an_order(attempt=3),
                None,
                {"deploy": structs.replace(DEPLOYING, order=an_order(attempt=3), attempt=3)},
            ),
        ],
    ),
    "another instance is deployed where one was undeployed": (
        a_row(),
        [
            (an_undeploy(attempt=2), destroyed(2), {"deploy": None}),
            (
                an_order(THEIRS),
                None,
                {"deploy": structs.replace(DEPLOYING, order=an_order(THEIRS), instance=THEIRS)},
            ),
        ],
    ),
    **{
        f"an undeploy turns a deploy that {how}": (
            a_row(deploy=deploy),
            [
                (
                    an_undeploy(),
                    None,
                    {"deploy": structs.replace(UNDEPLOYING, order=deploy.order), "ended": OVER},
                ),
                (an_undeploy(), None, None),
            ],
        )
        for how, deploy in (
            ("is under way", DEPLOYING),
            ("has failed", structs.replace(DEPLOYING, failure="no image")),
        )
    },
    **{
        f"what is on the node is undeployed: {how}": (
            a_row(deployed=deployed, node=a_node(instance_uuid=OURS)),
            [(an_undeploy(), None, {"deploy": UNDEPLOYING})],
        )
        for how, deployed in (("deployed here", ACTIVE), ("known to Ironic alone", None))
    },
    **{
        f"an undeploy waits for the order of another instance on its node: {how}": (
            a_row(deployed=deployed, node=ON_NODE, deploy=OF_THEIRS),
            [
                (an_undeploy(), None, {"deploy": OF_THEIRS}),
                (lambda row: structs.replace(row, deploy=None), None, {"deploy": None}),
                (
                    with_leftover,
                    None,
                    {"deploy": structs.replace(UNDEPLOYING, is_leftover=deployed is None, started_at=None)},
                ),
                # The conductor is answered in the end.
                (an_undeploy(), None, {"deploy": structs.replace(UNDEPLOYING, started_at=None)}),
            ],
        )
        for how, deployed in (("deployed here", ACTIVE), ("known to Ironic alone", None))
    },
    "an attempt that a later one has taken over is gone": (
        a_row(deployed=ACTIVE, node=ON_NODE, deploy=a_deploy(attempt=2)),
        [(an_undeploy(), destroyed(), {"deploy": a_deploy(attempt=2)})],
    ),
    "a late undeploy of one that is over takes no other off although Ironic has that one there": (
        a_row(node=a_node(provision_state="active", instance_uuid=THEIRS), deployed=LIVING),
        [
            (an_undeploy(THEIRS), destroyed(instance=THEIRS), {"deploy": None}),
            (settle, None, {"deploy": None}),
        ],
    ),
    "what Ironic has on a node is adopted by its row alone and comes again without a change": (
        a_row(node=THERE),
        [
            (an_adoption(), None, {**structs.asdict(a_row(node=THERE)), "deployed": ADOPTED}),
            (an_adoption(), None, None),
            (settle, None, {"deploy": None}),
            # It ends as any other does.
            (an_undeploy(), None, {"deploy": UNDEPLOYING}),
        ],
    ),
    "what is given back is no leftover and no late order touches it": (
        a_row(node=THERE),
        [
            (an_adoption(), None, {"deployed": ADOPTED}),
            (a_leave(), destroyed(), {"deployed": None, "ended": (), "left": OVER}),
            (a_leave(), destroyed(), None),
            (an_undeploy(), destroyed(), None),
            (an_adoption(), "was given back", None),
            (settle, None, {"deploy": None}),
            (an_adoption(attempt=2), None, {"living": structs.replace(ADOPTED, attempt=2)}),
            (an_undeploy(attempt=2), None, {"deploy": structs.replace(UNDEPLOYING, attempt=2)}),
        ],
    ),
    "an order to leave that overtakes the adoption wins": (
        a_row(node=THERE),
        [
            (a_leave(), destroyed(), {"deployed": None}),
            (an_adoption(), "was given back", None),
            (settle, None, {"deploy": None}),
        ],
    ),
    "an undeploy that a person has ordered is not left half done": (
        a_row(node=THERE),
        [
            (an_adoption(), None, {"deployed": ADOPTED}),
            (an_undeploy(), None, {"deploy": UNDEPLOYING}),
            (a_leave(), None, None),
            (an_adoption(), "was undeployed", None),
        ],
    ),
    "a rebuild is written on the row and comes again without a change": (
        WITH_ACTIVE,
        [
            (a_redeploy(), None, {"deploy": REBUILDING}),
            (a_redeploy(), None, None),
            (a_redeploy(101), None, None),
            (a_redeploy(103), None, {"deploy": structs.replace(REBUILDING, order=a_redeploy(103))}),
        ],
    ),
    **{
        f"a rebuild that was done is answered again and an earlier one is not: {how}": (
            a_row(deployed=deployed, node=ON_NODE),
            [
                (a_redeploy(), None, {"deploy": REBUILDING}),
                (
                    finished(Finish()),
                    None,
                    {"deployed": structs.replace(ACTIVE, rebuilt=Rebuilt(number=102))},
                ),
                (a_redeploy(), redeployed(), None),
                (a_redeploy(101), None, None),
            ],
        )
        for how, deployed in (("known", ACTIVE), ("only Ironic knows of it", None))
    },
    "an undeploy ends a rebuild and one that comes later is refused": (
        WITH_ACTIVE,
        [
            (a_redeploy(), None, {"deploy": REBUILDING}),
            (an_undeploy(), None, {"deploy": structs.replace(UNDEPLOYING, order=a_redeploy())}),
            (a_redeploy(103), redeployed("attempt 1 was undeployed", number=103), {"ended": OVER}),
            (finished(Gone()), None, {"deploy": None, "deployed": None}),
        ],
    ),
    "an instance that came to the node after its attempt was over is taken off": (
        LEFTOVER,
        [
            (with_leftover, None, {"deploy": TAKEN_OFF}),
            # Now its conductor waits for it.
            (an_undeploy(attempt=4), None, {"deploy": structs.replace(TAKEN_OFF, is_leftover=False)}),
        ],
    ),
    **{
        f"what is on a node is no leftover: {why}": (
            structs.replace(LEFTOVER, **fields),
            [(with_leftover, None, None)],
        )
        for why, fields in NO_LEFTOVERS.items()
    },
    "the conductor of an instance hears once that its node is deleted": (
        WITH_OURS,
        [
            (with_lost_instance, None, None),
            (is_deleted, None, {"is_deleted": True}),
            (with_lost_instance, None, {"answers": (LOST,), "due_at": AT_ONCE}),
            (with_lost_instance, None, None),
        ],
    ),
    "an undeploy ends what is lost with its node": (
        structs.replace(WITH_OURS, is_deleted=True, deploy=a_deploy(kind="undeploy")),
        [(with_lost_instance, None, None)],
    ),
    "a deleted node of which something was heard since is read first": (
        structs.replace(WITH_OURS, is_deleted=True, is_doubted=True),
        [(with_lost_instance, None, None)],
    ),
    "the conductor hears once that the node is back with the instance": (
        BACK,
        [
            (
                with_lost_instance,
                None,
                {
                    "answers": (AGAIN_ON_ITS_NODE,),
                    "due_at": AT_ONCE,
                    "deployed": structs.replace(
                        ACTIVE, gone_or_back=2, rebuilt=structs.replace(WAS_GONE, is_active=True)
                    ),
                },
            ),
            (with_lost_instance, None, None),
            (is_deleted, None, {"is_deleted": True}),
            (
                with_lost_instance,
                None,
                {"answers": (AGAIN_ON_ITS_NODE, structs.replace(LOST, number=3))},
            ),
        ],
    ),
    **{
        f"the conductor does not hear that the node is back before that is beyond doubt: {why}": (
            structs.replace(BACK, **fields),
            [(with_lost_instance, None, None)],
        )
        for why, fields in NOT_BEYOND_DOUBT.items()
    },
    "what lives on a node by the books is not wiped since Ironic has an ended instance there": (
        a_row(node=OF_IRONIC, deployed=LIVING, ended=ENDED_THERE),
        [
            (
                settle,
                None,
                {
                    "deploy": None,
                    "offer.reserved": True,
                    "trouble": f"{IN_DISCORD} instance {THEIRS} on the node",
                },
            )
        ],
    ),
    "of two that have ended Ironic's one is taken off": (
        a_row(
            node=OF_IRONIC,
            deployed=LIVING,
            ended=(ENDED_THERE[0], Ended(instance=OURS, attempt=2)),
        ),
        [(settle, None, {"deploy.kind": "undeploy", "deploy.instance": THEIRS})],
    ),
    "a node that Ironic believes to be free is not offered nor built on while an instance lives there": (
        a_row(deployed=LIVING),
        [
            (
                settle,
                None,
                {"offer.reserved": True, "offer.reasons": (f"{IN_DISCORD} no instance on the node",)},
            ),
            (an_order(THEIRS), "lives here by the books", {"deploy": None}),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_orders_make_of_the_row_of_a_node_and_what_is_answered(case: str) -> None:
    row, steps = CASES[case]
    for order, told, says in steps:
        now, answer = (order(row), None) if callable(order) else after(row, order)
        if isinstance(told, str):
            assert isinstance(answer, SpawnFailed)
            assert told in answer.reason
        else:
            assert answer == told
        assert {path: attrgetter(path)(now) for path in says or ()} == (says or {})
        assert says or now is row
        row = now


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (NodeRow(id=NODE_ID), "is not known here"),
        (a_row(node=None), "is not known here"),
        (a_row(is_deleted=True), "is deleted in Ironic"),
        (a_row(is_foreign=True, report_note="by hand"), "something else keeps the provider of node"),
        (a_row(cell="c2"), "is in cell 'c2', not in 'c1'"),
        (a_row(deploy=a_deploy(instance=THEIRS)), f"deploy of instance {THEIRS} is under way"),
        (a_row(deploy=a_deploy(kind="undeploy")), f"undeploy of instance {OURS} is under way"),
        (a_row(node=a_node(maintenance=True)), "the node is in maintenance"),
        (a_row(node=a_node(provision_state="cleaning")), "Ironic cleans the node"),
        (a_row(node=a_node(instance_uuid=THEIRS)), f"instance {THEIRS} is on the node"),
    ],
)
def test_a_deploy_is_refused_with_its_reason(row: NodeRow, words: str) -> None:
    now, answer = after(row, an_order(attempt=2))

    assert isinstance(answer, SpawnFailed)
    assert words in answer.reason
    assert now.deploy is row.deploy


@pytest.mark.parametrize(
    ("row", "words", "is_active"),
    [
        (NodeRow(id=NODE_ID), "is not known here", False),
        (a_row(node=a_node()), "attempt 1 of the instance is not on node", False),
        (
            a_row(deployed=structs.replace(ACTIVE, attempt=2), node=ON_NODE),
            "attempt 1 of the instance is not on",
            False,
        ),
        (
            a_row(deployed=ACTIVE, node=ON_NODE, deploy=a_deploy(kind="undeploy")),
            f"undeploy of instance {OURS} is under way",
            True,
        ),
    ],
)
def test_a_rebuild_is_refused_with_its_reason(row: NodeRow, words: str, *, is_active: bool) -> None:
    now, answer = after(row, a_redeploy())

    assert isinstance(answer, InstanceRedeployed)
    assert words in answer.failure
    assert answer.is_active == is_active
    assert now.deploy is row.deploy


def test_a_daemon_without_ironics_api_refuses_and_it_stays_refused() -> None:
    row, answer = after_order(a_row(), an_order(), NOON, can_deploy=False)
    active, rebuilt = after_order(WITH_ACTIVE, a_redeploy(), NOON, can_deploy=False)

    assert isinstance(answer, SpawnFailed)
    assert (answer.reason, row.deploy) == (NO_API, None)
    assert rebuilt == redeployed(NO_API)
    assert after(active, a_redeploy()) == (active, rebuilt)
    assert after(active, a_redeploy(103))[0].deploy is not None


@pytest.mark.parametrize(
    ("row", "order"),
    [
        (NodeRow(id=NODE_ID), an_undeploy()),
        (a_row(), an_undeploy()),
        (a_row(deploy=OF_THEIRS), an_undeploy()),
        (a_row(deploy=a_deploy(attempt=2)), an_undeploy(attempt=1)),
        (a_row(deploy=a_deploy(cell="c2")), an_undeploy()),
        (a_row(deployed=ACTIVE, node=ON_NODE), an_undeploy(attempt=2)),
        (a_row(deployed=structs.replace(ACTIVE, cell="c2"), node=ON_NODE), an_undeploy()),
        (a_row(cell="c2", node=ON_NODE), an_undeploy()),
        (a_row(node=a_node(instance_uuid=THEIRS)), an_undeploy()),
    ],
    ids=[
        *("unknown node", "nothing here", "deploy of another", "deploy of a later attempt"),
        *("deploy of another cell", "another attempt is active", "active for another cell"),
        *("a node of another cell", "another's instance"),
    ],
)
def test_an_undeploy_of_what_is_not_there_is_answered_and_touches_nothing(row: NodeRow, order: Order) -> None:
    same, answer = after(row, order)

    assert answer == InstanceDestroyed(cell="c1", instance=OURS, attempt=order.attempt, host=NODE_ID)
    assert same == structs.replace(row, ended=same.ended)


def _instance(number: int) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=number)))


def test_tombstones_are_bounded_and_each_instance_has_its_latest() -> None:
    row = a_row()
    for number in range(ENDED_MAX + 5):
        row = with_end(row, _instance(number), 1)
    row = with_end(row, _instance(10), 2)

    assert len(row.ended) == ENDED_MAX
    assert row.ended[-1].attempt == 2
    assert with_end(row, row.ended[-1].instance, 1) is row


EARLY, LATE = (NOON + timedelta(hours=hours) for hours in (-1, 1))


def of_time(at: datetime | None, **fields: Any) -> Node:
    return structs.replace(a_node(), provision_updated_at=at, **fields)


@pytest.mark.parametrize(
    ("before", "now", "older_than"),
    [
        (a_row(node=of_time(NOON)), of_time(EARLY), NOON),
        (a_row(node=of_time(NOON)), of_time(None), NOON),
        (a_row(node=of_time(NOON)), of_time(NOON, power_state="power on"), None),
        (a_row(node=of_time(NOON)), of_time(LATE), None),
        (a_row(node=of_time(NOON)), None, None),
        (a_row(node=None), of_time(EARLY), None),
        # A node that comes again after it was deleted is another one.
        (a_row(node=of_time(NOON), is_deleted=True), of_time(EARLY), None),
        # It stays so until Ironic's time has come again.
        (a_row(node=of_time(EARLY), older_than=LATE), of_time(NOON), LATE),
        (a_row(node=of_time(EARLY), older_than=NOON), of_time(LATE), None),
        # Also if it was lost meanwhile.
        (a_row(node=of_time(EARLY), older_than=NOON, is_deleted=True), of_time(NOON), None),
        (a_row(node=of_time(EARLY), older_than=NOON, is_deleted=True), of_time(EARLY), NOON),
        (a_row(node=of_time(NOON), older_than=NOON), of_time(NOON), None),
    ],
)
def test_a_node_of_which_ironic_tells_an_older_state_than_is_known_is_noted(
    before: NodeRow, now: Node | None, older_than: datetime | None
) -> None:
    assert after_change(before, structs.replace(before, node=now), POLICY).older_than == older_than


def test_what_a_person_has_answered_about_an_older_state_stays_answered() -> None:
    before = a_row(node=of_time(EARLY), older_than=NOON)

    assert after_change(before, answered(before), POLICY).older_than is None


@pytest.mark.parametrize(
    ("alarms", "why"),
    [
        (Alarms(older=0, unasked=3), ""),
        (Alarms(older=0, unasked=4), "took instances off 3 nodes"),
        (Alarms(older=1, unasked=0), "Ironic was restored"),
    ],
)
def test_daemons_take_off_by_themselves_so_many_and_none_after_a_restore(alarms: Alarms, why: str) -> None:
    said = why_not_unasked(alarms, 3)

    assert (why in said, bool(said)) == (True, bool(why))


def test_a_rebuild_does_not_forget_what_the_conductor_was_told_of_its_node() -> None:
    row = a_row(deployed=structs.replace(ACTIVE, gone_or_back=1), is_deleted=True)

    after_it = with_rebuilt(row, a_redeploy(), Rebuilt(number=1, failure="no", is_active=False))

    assert after_it.deployed is not None
    assert after_it.deployed.gone_or_back == 1


def test_each_loss_of_power_has_a_number_of_its_own_and_is_told_until_that_is_noted() -> None:
    has_power = a_node(provision_state="active", instance_uuid=OURS)
    has_none = structs.replace(
        has_power, fault="power failure", maintenance=True, maintenance_reason="no BMC"
    )
    lost = settled(a_row(node=has_none, deployed=LIVING, version=7), POLICY)

    (loss,) = power_news(lost)
    assert (lost.due_at, loss.number, loss.instance) == (AT_ONCE, 8, OURS)
    assert (
        loss.words == node_words(lost) == "its node has lost its power, or Ironic the control of it: no BMC"
    )
    told = structs.replace(lost, power_loss_told=8, version=8)
    assert power_news(settled(told, POLICY)) == []

    # It has its power again, and loses it once more before anybody was told: that loss is another one.
    again = settled(structs.replace(told, node=has_power, version=9), POLICY)
    assert [(each.number, each.words) for each in power_news(again)] == [(8, "")]
    anew = settled(structs.replace(again, node=has_none, version=10), POLICY)
    assert [(each.number, bool(each.words)) for each in power_news(anew)] == [(8, False), (11, True)]

    # While it is not known whether that is so, nothing is told of it; and nothing of a node without an instance.
    doubted = structs.replace(told, node=has_power, doubts=("it was heard twice",))
    assert settled(doubted, POLICY).power_loss == 8
    assert settled(structs.replace(told, deployed=None), POLICY).power_loss == 0
    assert settled(a_row(node=has_none), POLICY).power_loss == 0


@pytest.mark.parametrize("state", sorted(PROVISION_STATES.keys() - {"active"}, key=str))
def test_what_the_node_of_a_living_instance_says_is_to_be_told(state: str | None) -> None:
    node = a_node(provision_state=state, instance_uuid=OURS, last_error="no power")
    row = settled(a_row(node=node, deployed=LIVING), POLICY)

    assert row.due_at == AT_ONCE
    assert node_words(row) == f"its node says: {state}: no power"
    told = structs.replace(row, deployed=structs.replace(LIVING, told=node_words(row)), answers_at=None)
    assert settled(told, POLICY).answers_at is None
    again = structs.replace(told, node=a_node(provision_state="active", instance_uuid=OURS))
    assert settled(again, POLICY).due_at == AT_ONCE
    assert node_words(again) == ""
    # While an order is under way, its progress is told.
    assert node_words(structs.replace(row, deploy=OF_THEIRS)) == ""


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (NodeRow(id=NODE_ID), "is not known here"),
        (a_row(node=THERE, is_deleted=True), "is deleted in Ironic"),
        (a_row(node=THERE, cell="c2"), "is in cell 'c2', not in 'c1'"),
        (a_row(node=THERE, is_foreign=True), "something else keeps the provider"),
        (a_row(node=THERE, deploy=a_deploy(kind="undeploy", instance=THEIRS)), "is under way"),
        (a_row(node=THERE, deployed=structs.replace(ACTIVE, instance=THEIRS)), f"{THEIRS} lives on node"),
        (a_row(node=THERE, older_than=NOON), "restored from a backup"),
        (a_row(node=THERE, missing_since_us=1), "has lost node"),
        (a_row(), "Ironic has no instance"),
        (a_row(node=a_node(provision_state="active", instance_uuid=THEIRS)), f"Ironic has instance {THEIRS}"),
        (
            a_row(node=a_node(provision_state="deleting", instance_uuid=OURS)),
            "'deleting', and must be 'active'",
        ),
        (a_row(node=a_node(provision_state="rescue", instance_uuid=OURS)), "'rescue', and must be 'active'"),
        (a_row(node=THERE, ended=(Ended(instance=OURS, attempt=1),)), "was undeployed"),
        (a_row(node=THERE, left=(Ended(instance=OURS, attempt=2),)), "was given back"),
    ],
)
def test_a_refused_adoption_leaves_the_row_as_it_was(row: NodeRow, words: str) -> None:
    same, answer = after(row, an_adoption())

    assert same is row
    assert isinstance(answer, SpawnFailed)
    assert words in answer.reason
