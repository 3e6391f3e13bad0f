"""Does this message count? Checks of its key, its cell, its project and its verified sender."""

from uuid import UUID

import pytest
from msgspec import structs

from bus import message as headers
from bus.broker import Delivery, Origin
from bus.message import API, EVENTS, PLACEMENT, REPLY, Kind, Message, Parcel
from bus.messages.build import AskInstances, BuildInstance, DeleteInstance, InstancesFound, RebuildInstance
from bus.messages.hosts import AskHosts, HostsAlive, HostsFound, HostsReported, SetHost
from bus.messages.placement import (
    AskSnapshot,
    ClaimAnswered,
    LogPosition,
    ProvidersChanged,
    ReportInventory,
    SnapshotPage,
)
from bus.messages.planning import AskDrain
from bus.messages.projects import AskGroups
from bus.queues import DEAD, FEED, Grant
from bus.topology import destination_of
from bus.workers.authority import (
    BrokerFacts,
    Refused,
    all_count,
    broker_facts_of,
    judge,
    judge_answer,
    judge_parcel,
    origin_of,
    speaks_for,
    wrong_reply_to,
)
from engine.flavors import Image, InstanceId, RequestId
from engine.inventories import ConsumerId, ProviderId
from engine.refusals import Released
from tests.unit.examples import EXAMPLES

WITH_USERS, WITHOUT = BrokerFacts(has_users=True), BrokerFacts()
OF_C1 = BrokerFacts(has_users=True, cells=frozenset({"c1"}))
BUILD = BuildInstance(request_id=RequestId(UUID(int=1)), project="shop")
RELEASE = next(each for each in EXAMPLES if type(each).__name__ == "ReleaseClaim")
FACTS, BEAT = HostsReported(cell="c1", hosts=()), HostsAlive(cell="c1", hosts=())
DEPLOY, UNDEPLOY, PROGRESS, REBUILD_IN_CELL, REDEPLOY, REDEPLOYED, RESPAWN = (
    next(each for each in EXAMPLES if type(each).__name__ == name)
    for name in (
        *("DeployInstance", "UndeployInstance", "DeployProgressed"),
        *("RebuildInCell", "RedeployInstance", "InstanceRedeployed", "RespawnInstance"),
    )
)
REBUILD = RebuildInstance(
    request_id=RequestId(UUID(int=2)),
    instance=InstanceId(ConsumerId(UUID(int=3))),
    image=Image(source="http://images/debian"),
    project="shop",
)
REPORT = ReportInventory(cell="c1", root=ProviderId(UUID(int=1)), providers=())
CHANGED = ProvidersChanged(at=LogPosition(term=1, position=1))
PLACED, REJECTED = (
    next(each for each in EXAMPLES if type(each).__name__ == name)
    for name in ("InstancePlaced", "BuildRejected")
)
MOVE, END, ASK_HISTORY, DELETE, SET_BUDGET, CLAIM, MOVEMENT = (
    next(each for each in EXAMPLES if type(each).__name__ == name)
    for name in (
        *("MoveInstance", "EndMove", "AskHistory", "DeleteInstance"),
        *("SetBudget", "ClaimResources", "MovementChanged"),
    )
)
PAGE = SnapshotPage(providers=(), published=LogPosition(term=1, position=1))


def said(message: Message, sender: str = "", *, exchange: str = "", key: str = "") -> Origin:
    address = destination_of(message)
    return Origin(sender, "", exchange or address.exchange, key or address.routing_key)


def refusal(message: Message, origin: Origin, facts: BrokerFacts = WITH_USERS) -> str:
    refused = judge_parcel(origin, facts) or judge(message, origin, facts)
    return refused.reason if refused else ""


def test_no_message_counts_under_the_key_of_another() -> None:
    for example in EXAMPLES:
        for other in EXAMPLES:
            address = destination_of(other)
            if address != destination_of(example):
                origin = Origin("", "", address.exchange, address.routing_key)
                assert "counts only under the key" in refusal(example, origin, WITHOUT), (example, address)


@pytest.mark.parametrize(
    ("message", "key"),
    [
        (RELEASE, "snapshot"),
        (SetHost(host="h1", mode="draining"), "build.request.shop"),
        (BUILD, "build.request.bank"),
        (BUILD, "build.request.-"),
        (DeleteInstance(instance=BUILD.request_id), "instance.delete.shop"),  # type: ignore[arg-type]
        (REPORT, "inventory.report.c2"),
    ],
)
def test_a_key_of_another_type_project_or_cell_is_refused_and_named(message: Message, key: str) -> None:
    assert repr(key) in refusal(message, said(message, "moor-operator", key=key))


@pytest.mark.parametrize(
    ("sender", "message", "allowed"),
    [
        ("moor-app-shop", BUILD, True),
        ("moor-operator", BUILD, True),
        ("moor-scheduler", BUILD, False),
        ("moor-conductor-c1", BUILD, False),
        ("moor-app-shop", SetHost(host="h1", mode="draining"), False),
        ("moor-operator", SetHost(host="h1", mode="draining"), True),
        # The broker has checked, by its rights to the key, whether this application is an admin.
        ("moor-app-shop", AskHosts(), True),
        ("moor-conductor-c1", AskHosts(), False),
        ("moor-app-shop", AskSnapshot(), False),
        ("moor-scheduler", AskSnapshot(), True),
        ("moor-compute-c1", REPORT, True),
        ("moor-compute-c2", REPORT, False),
        ("moor-conductor-c1", REPORT, False),
        ("moor-ironic", REPORT, True),
        ("moor-operator", REPORT, False),
        ("moor-ironic", FACTS, True),
        ("moor-ironic", BEAT, True),
        ("moor-compute-c2", FACTS, False),
        ("moor-conductor-c1", DEPLOY, True),
        ("moor-conductor-c2", DEPLOY, False),
        ("moor-scheduler", DEPLOY, False),
        ("moor-ironic", DEPLOY, False),
        ("moor-conductor-c1", UNDEPLOY, True),
        ("moor-compute-c1", UNDEPLOY, False),
        ("moor-app-shop", REBUILD, True),
        ("moor-scheduler", REBUILD, False),
        ("moor-scheduler", REBUILD_IN_CELL, True),
        ("moor-conductor-c1", REBUILD_IN_CELL, False),
        ("moor-conductor-c1", REDEPLOY, True),
        ("moor-ironic", REDEPLOY, False),
        ("moor-ironic", REDEPLOYED, True),
        ("moor-compute-c1", REDEPLOYED, True),
        ("moor-compute-c1", RESPAWN, False),
        ("moor-conductor-c1", RESPAWN, True),
        ("moor-ironic", PROGRESS, True),
        ("moor-compute-c1", PROGRESS, False),
        ("moor-conductor-c1", PROGRESS, False),
        ("moor-placement", CHANGED, True),
        ("moor-scheduler", CHANGED, False),
        ("moor-operator", CHANGED, False),
        # What an operator's client says of moves and hosts, a keeper may say, for all projects; and no more.
        *(
            ("moor-keeper", each, True)
            for each in (MOVE, END, SetHost(host="h1", mode="draining"), AskHosts())
        ),
        *(("moor-keeper", each, True) for each in (AskInstances(), AskDrain(), AskGroups(), ASK_HISTORY)),
        ("moor-keeper", structs.replace(MOVE, project="shop"), True),
        *(
            ("moor-keeper", each, False)
            for each in (BUILD, REBUILD, DELETE, SET_BUDGET, CLAIM, AskSnapshot())
        ),
        ("moor-keeper", MOVEMENT, True),
        ("moor-scheduler", MOVEMENT, False),
        ("moor-operator", SET_BUDGET, True),
        ("moor-app-shop", SET_BUDGET, False),
        ("moor-scheduler", MOVE, False),
        ("moor-conductor-c1", MOVE, False),
    ],
)
def test_a_message_counts_if_the_table_allows_it_to_the_senders_role(
    sender: str, message: Message, *, allowed: bool
) -> None:
    assert (refusal(message, said(message, sender)) == "") is allowed


BANKS_BUILD = BuildInstance(request_id=RequestId(UUID(int=4)), project="bank")
ACTIVE = next(each for each in EXAMPLES if type(each).__name__ == "InstanceActive")
ON_FEED = Origin("", "", FEED, ACTIVE.instance.project or "-")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("messages", "origin", "facts", "do_count"),
    [
        ((BUILD, structs.replace(BUILD, count=2)), said(BUILD, "moor-app-shop"), WITH_USERS, True),
        ((BUILD, BANKS_BUILD), said(BUILD, "moor-app-shop"), WITH_USERS, False),
        ((BANKS_BUILD, BUILD), said(BUILD, "moor-app-shop"), WITH_USERS, False),
        # Of two types, and of the same cell: each is judged by its own key.
        ((BEAT, FACTS), said(BEAT, "moor-compute-c1"), WITH_USERS, False),
        ((BEAT, FACTS), said(FACTS, "moor-compute-c1"), WITH_USERS, False),
        ((BEAT, structs.replace(BEAT, cell="c2")), said(BEAT, "moor-compute-c1"), OF_C1, False),
        ((ACTIVE, ACTIVE), ON_FEED, WITHOUT, True),
        ((ACTIVE, ACTIVE), structs.replace(ON_FEED, key="another"), WITHOUT, False),
    ],
)
def test_a_parcel_counts_as_a_whole_if_each_of_its_messages_does(
    messages: tuple[Message, ...], origin: Origin, facts: BrokerFacts, *, do_count: bool
) -> None:
    assert all_count(messages, origin, facts) is do_count


def test_an_order_that_may_expire_does_not_count_since_nobody_would_hear_of_it() -> None:
    refused = judge(BUILD, structs.replace(said(BUILD, "moor-app-shop"), expiration="1000"), WITH_USERS)

    assert refused is not None
    assert (refused.field, refused.value, refused.is_told) == ("expiration", "1000", True)


def test_a_broker_has_users_if_a_process_is_connected_as_one_of_them() -> None:
    assert broker_facts_of("moor-scheduler") == WITH_USERS
    assert broker_facts_of("moor-conductor-c1", ["c1"]) == OF_C1
    assert broker_facts_of("guest") == WITHOUT


def test_a_message_counts_on_the_exchange_of_the_application_that_sent_it() -> None:
    own = said(BUILD, "moor-app-shop", exchange="moor.api.shop")

    assert refusal(BUILD, own) == ""
    for sender in ("moor-app-bank", "moor-operator", "moor-scheduler"):
        assert "counts only under the key" in refusal(BUILD, structs.replace(own, sender=sender))
    assert judge(BUILD, structs.replace(own, sender="guest"), WITH_USERS) is not None
    assert "counts only under the key" in refusal(BUILD, structs.replace(own, key="build.request.bank"))
    for example in EXAMPLES:
        if destination_of(example).exchange != API:
            elsewhere = said(example, "moor-app-shop", exchange="moor.api.shop")
            assert "counts only under the key" in refusal(example, elsewhere), example


@pytest.mark.parametrize(
    "sender", ["", "guest", "moor-cell-c1", "moor-client", "moor-conductor", "moor-app-"]
)
def test_a_sender_that_the_table_does_not_know_is_refused_without_an_answer(sender: str) -> None:
    refused = judge_parcel(said(BUILD, sender), WITH_USERS)

    assert refused is not None
    assert not refused.is_told
    assert ("without a user_id" in refused.reason) is (not sender)
    assert judge_parcel(said(BUILD, sender), WITHOUT) is None
    elsewhere = judge_parcel(
        structs.replace(said(BUILD, sender), reply_to="answers.moor-ironic.p1"), WITH_USERS
    )
    assert elsewhere is not None
    assert elsewhere.field == "user_id"
    # A question says where its answer goes: it is refused by itself, and its sender is told.
    by_name = judge(BUILD, said(BUILD, sender), WITH_USERS)
    assert by_name is not None
    assert by_name.is_told
    assert speaks_for(sender, WITH_USERS) is None


def test_on_a_cells_own_broker_no_message_counts_for_another_cell() -> None:
    other = ReportInventory(cell="c2", root=ProviderId(UUID(int=1)), providers=())
    for sender in ("moor-compute-c1", "moor-compute-c2", "moor-operator", "moor-ironic"):
        assert refusal(other, said(other, sender), OF_C1)
    assert refusal(REPORT, said(REPORT, "moor-compute-c1"), OF_C1) == ""
    assert refusal(PROGRESS, said(PROGRESS, "moor-ironic"), OF_C1) == ""
    # It names none.
    assert refusal(CHANGED, said(CHANGED, "moor-placement"), OF_C1) == ""
    assert speaks_for("moor-operator", OF_C1) == "c1"
    assert speaks_for("moor-operator", WITH_USERS) is None
    assert speaks_for("moor-operator", BrokerFacts(has_users=True, cells=frozenset({"c1", "c2"}))) is None
    assert speaks_for("moor-compute-c2", WITH_USERS) == "c2"


# Messages that come by another exchange


def test_a_parcel_that_was_dead_lettered_on_its_way_is_refused_from_any_sender() -> None:
    parcel = Parcel(
        PLACEMENT,
        "release.c1",
        b"{}",
        headers={headers.BROKER_REASON: "expired", headers.BROKER_QUEUE: "amq.gen-x"},
    )

    origin = origin_of(Delivery(1, "placement.work", parcel, sender="moor-scheduler"), WITH_USERS)

    refused = judge_parcel(origin, WITH_USERS)
    assert refused is not None
    assert "amq.gen-x" in refused.reason
    undead = structs.replace(parcel, headers={headers.BROKER_QUEUE: "amq.gen-x"})
    assert not origin_of(Delivery(1, "placement.work", undead, sender="moor-scheduler"), WITH_USERS).astray


FIRST = {headers.SENDER: "moor-operator", headers.EXCHANGE: API, headers.KEY: "host.set"}


@pytest.mark.parametrize(
    ("sender", "queue", "is_believed"),
    [
        ("moor-scheduler", "scheduler.requests", True),
        ("moor-scheduler", "scheduler.requests.shop", True),
        ("moor-conductor-c1", "conductor.c1.work", True),
        ("moor-ironic", "ironic.c1.work", True),
        ("moor-ironic", "ironic.events", True),
        # It replays a letter of another.
        ("moor-operator", "scheduler.requests", True),
        ("moor-conductor-c1", "conductor.c2.work", False),
        ("moor-conductor-c1", "compute.c1.work", False),
        ("moor-compute-c1", "scheduler.requests", False),
        ("moor-placement", "scheduler.requests", False),
        ("moor-app-shop", "scheduler.requests", False),
        ("moor-app-shop", "scheduler.requests.shop", False),
        ("moor-app-admin", "scheduler.requests", False),
        ("moor-nobody", "scheduler.requests", False),
        ("", "scheduler.requests", False),
    ],
)
@pytest.mark.parametrize("exchange", [DEAD, "moor.retry.scheduler", API, EVENTS])
def test_the_first_sender_is_named_by_who_reads_the_queue_or_replays(
    sender: str, queue: str, exchange: str, *, is_believed: bool
) -> None:
    parcel = Parcel(exchange, queue, b"{}", headers=dict(FIRST))

    origin = origin_of(Delivery(1, "q", parcel, sender=sender), WITH_USERS)

    # Nobody but a worker and an operator can write to the dead letters, whoever leaves out its name.
    is_named = (is_believed or (not sender and exchange == DEAD)) and exchange in (
        DEAD,
        "moor.retry.scheduler",
    )
    assert (origin.sender, origin.key == "host.set") == ("moor-operator" if is_named else sender, is_named)


@pytest.mark.parametrize(
    ("written", "sender"),
    [
        (FIRST | {headers.BROKER_REASON: "delivery_limit"}, "moor-operator"),
        # It parks what nobody has said.
        ({}, ""),
    ],
)
def test_a_parked_message_that_came_back_too_often_is_still_of_its_first_sender(
    written: dict[str, str], sender: str
) -> None:
    parcel = Parcel(DEAD, "scheduler.requests", b"{}", headers=dict(written))

    assert origin_of(Delivery(1, "q", parcel, sender="moor-scheduler"), WITH_USERS).sender == sender


@pytest.mark.parametrize(
    ("sender", "key"),
    [("moor-conductor-c1", "swap.c1"), ("moor-operator", "swap.c1"), ("moor-app-shop", ""), ("", "swap.c1")],
)
def test_the_broker_names_the_key_of_a_dead_letter_unless_its_sender_may_have_written_that(
    sender: str, key: str
) -> None:
    death = {
        headers.BROKER_REASON: "expired",
        headers.BROKER_QUEUE: "placement.work",
        headers.BROKER_EXCHANGE: PLACEMENT,
        headers.BROKER_KEY: "swap.c1",
    }

    origin = origin_of(
        Delivery(1, "q", Parcel(DEAD, "placement.work", b"{}", headers=death), sender=sender), WITH_USERS
    )

    assert origin == Origin(sender, "", PLACEMENT if key else "", key)


# Answers


@pytest.mark.parametrize(
    ("reply_to", "sender", "is_right"),
    [
        ("answers.moor-app-shop.p1", "moor-app-shop", True),
        ("answers.moor-scheduler.p1", "moor-app-shop", False),
        ("answers.moor-app-shop", "moor-app-shop", False),
        ("answers.moor-app-shop.p1.x", "moor-app-shop", False),
        ("answers.moor-app-shop.", "moor-app-shop", False),
        ("answers.moor-app-shop." + "x" * 233, "moor-app-shop", True),
        ("answers.moor-app-shop." + "x" * 234, "moor-app-shop", False),
        ("answers.moor-app-shop.\n", "moor-app-shop", False),
        ("answers.moor-app-shop.#", "moor-app-shop", False),
        ("build.request.shop", "moor-app-shop", False),
        ("x" * 200, "moor-app-shop", False),
    ],
)
def test_an_answer_goes_to_its_askers_own_address_alone(
    reply_to: str, sender: str, *, is_right: bool
) -> None:
    assert (wrong_reply_to(reply_to, sender, WITH_USERS) == "") is is_right
    refused = judge_parcel(Origin(sender, reply_to, API, "instance.query.shop"), WITH_USERS)
    assert (refused is None) is is_right
    assert wrong_reply_to("answers.anyone.p1", sender, WITHOUT) == ""


@pytest.mark.parametrize(
    ("question", "answer", "sender", "exchange", "is_right"),
    [
        (AskSnapshot(), PAGE, "moor-placement", REPLY, True),
        (AskSnapshot(), PAGE, "moor-scheduler", REPLY, False),
        (AskSnapshot(), PAGE, "moor-app-shop", REPLY, False),
        (AskSnapshot(), PAGE, "", REPLY, False),
        (AskSnapshot(), PAGE, "moor-placement", EVENTS, False),
        (AskSnapshot(), HostsFound(hosts=()), "moor-placement", REPLY, False),
        (AskHosts(), HostsFound(hosts=()), "moor-scheduler", REPLY, True),
        (AskHosts(), HostsFound(hosts=()), "moor-placement", REPLY, False),
        (
            RELEASE,
            ClaimAnswered(consumer=RELEASE.consumer, attempt=1, verdict=Released(freed=True)),  # type: ignore[attr-defined]
            "moor-placement",
            REPLY,
            True,
        ),
        (BUILD, InstancesFound(instances=()), "moor-scheduler", REPLY, False),
        # An invalid request is answered by a rejection, whatever the question was.
        (AskSnapshot(), REJECTED, "moor-placement", REPLY, True),
        (AskSnapshot(), REJECTED, "moor-operator", REPLY, False),
    ],
)
def test_an_answer_counts_if_its_type_fits_the_question_and_its_sender_may_answer(
    question: Message, answer: Message, sender: str, exchange: str, *, is_right: bool
) -> None:
    refused = judge_answer(type(question), type(answer), exchange, sender, WITH_USERS)

    assert (refused is None) is is_right


# Posts and feeds


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_on_the_feed_only_events_count_and_only_under_their_own_project(example: Message) -> None:
    """An event without a project counts under `-`."""
    project: str = getattr(example, "project", "") or getattr(
        getattr(example, "instance", None), "project", ""
    )
    is_event = destination_of(example).kind is Kind.EVENT

    assert (judge(example, Origin("", "", FEED, project or "-"), WITHOUT) is None) is is_event
    for key in ("another", "", "#"):
        assert isinstance(judge(example, Origin("", "", FEED, key), WITHOUT), Refused)


@pytest.mark.parametrize(
    ("pattern", "key", "cell", "is_granted"),
    [
        ("build.{cell}", "build.c1", "", True),
        ("build.{cell}", "build.", "", False),
        ("build.{cell}", "build.c2", "c1", False),
        ("*.{cell}", ".c1", "c1", False),
        ("#", "build.", "", True),
        ("#.{cell}", "c1", "c1", True),
    ],
)
def test_a_key_with_an_empty_word_is_granted_by_no_pattern_of_single_words(
    pattern: str, key: str, cell: str, is_granted: object
) -> None:
    assert Grant("cells", (pattern,)).allows("cells", key, cell) is is_granted
