"""No cell calls up, and every message finds its way: both checked on the table itself."""

from typing import Any, get_args

import pytest
from msgspec import structs

from bus import messages
from bus.definitions import rights_by_user, rights_of
from bus.message import API, CELL, EVENTS, PLACEMENT, REPLY, Kind, Message, Route, Scope, type_of
from bus.messages import ALL, TYPES
from bus.messages.administration import Write
from bus.messages.build import AskInstances
from bus.messages.placement import ClaimResources, ReportInventory
from bus.queues import (
    API_QUEUES,
    DEAD,
    DEAD_QUEUE,
    IRONIC,
    IRONIC_EVENTS,
    RETRY,
    Binding,
    Limits,
    QueueKind,
    Site,
    application_queue,
)
from bus.topology import (
    EXCHANGES,
    INBOXES,
    QUEUES,
    ROLES,
    Application,
    BrokerUser,
    broker_user_of,
    destination_of,
    kind_of,
    objects_of,
    objects_of_application,
    retry_exchange_of,
    user_of,
)
from bus.workers.authority import answering
from tests.unit.examples import EXAMPLES

CELLS = ("c1", "c2")
ORDER = Route(Kind.ORDER, "placement.work", by=("operator",))
RIGHTS = rights_by_user(objects_of(CELLS).exchanges, CELLS)
# Messages that only an operator may publish.
FOR_OPERATORS = {type_of(kind) for kind in ALL if kind.ROUTE.by == ("operator",)}
# Writes by name to placement's books.
WRITES = [type_of(kind) for kind in get_args(Write)]
ADMINS = rights_of(Application("admin", admin=True).role, [each.name for each in objects_of(CELLS).exchanges])
USERS_OF_CELLS = {user_of(role.name, cell) for role in ROLES if role.per_cell for cell in CELLS}
OF_CELLS = {user: rights for user, rights in RIGHTS.items() if user in USERS_OF_CELLS}


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"ROUTE": ORDER, "__annotations__": {"cell": str}}, "its SCOPE is 'none', and its fields are cell"),
        ({"ROUTE": ORDER, "SCOPE": Scope.PROJECT}, "its SCOPE is 'project', and its fields are "),
        ({"ROUTE": structs.replace(ORDER, to="placement.word")}, "it goes to the queue 'placement.word', must be one of"),
        ({"ROUTE": structs.replace(ORDER, by=())}, "it is sent by (), and heard by (): roles are scheduler"),
        ({"ROUTE": structs.replace(ORDER, by=("nova",))}, "it is sent by ('nova',), and heard by (): roles are scheduler"),
        ({"ROUTE": structs.replace(ORDER, answer="claimed")}, "it is answered by 'claimed', which is no message"),
        ({"ROUTE": structs.replace(ORDER, kind=Kind.QUESTION)}, "it is answered by '', which is no answer"),
        ({"ROUTE": ORDER, "tag": "claim"}, "its tag 'claim' is that of another type, too"),
        ({"tag": "Trial"}, "it has no tag: tag='...' in its class line"),
        ({}, "neither it nor a base that is no message states a ROUTE"),
    ],
)  # fmt: skip
def test_a_type_that_says_something_wrong_about_itself_is_found(names: dict[str, Any], problem: str) -> None:
    tag = names.pop("tag", "trial")
    made: Any = type(Message)
    kind = made(
        "Trial", (Message if names or tag == "Trial" else ReportInventory,), names, tag=tag, frozen=True
    )
    problems_by_name = {**TYPES, "trial": kind} if tag == "trial" else TYPES

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "TYPES", problems_by_name)
        assert [each for each in messages.problems_of(kind) if each.startswith(problem)]


def test_every_order_and_question_finds_a_queue() -> None:
    queues = objects_of(CELLS).queues
    for example in EXAMPLES:
        address = destination_of(example)
        if address.kind in (Kind.ORDER, Kind.QUESTION):
            assert any(
                binding.exchange == address.exchange and matches(binding.pattern, address.routing_key)
                for queue in queues
                for binding in queue.bindings
            ), f"{address.routing_key} on {address.exchange}"


def test_the_last_part_of_a_key_is_a_field_of_the_message() -> None:
    for kind in ALL:
        scope, fields = kind.SCOPE, kind.__struct_fields__
        assert (scope is Scope.CELL) == ("cell" in fields and kind.ROUTE.kind is not Kind.ANSWER), kind
        assert scope is not Scope.PROJECT or "project" in fields, kind


def test_every_question_names_its_answers_and_a_role_sends_them() -> None:
    for kind in ALL:
        if kind.ROUTE.answer:
            assert answering(kind), f"nobody answers {kind}"
    assert answering(ClaimResources) == {"placement"}
    assert answering(AskInstances) == {"scheduler"}


def test_some_role_may_publish_every_message() -> None:
    for example in EXAMPLES:
        address = destination_of(example)
        if address.kind is not Kind.ANSWER and type_of(example) not in FOR_OPERATORS:
            assert any(
                rights.may_publish(address.exchange, address.routing_key)
                for rights in (*RIGHTS.values(), ADMINS)
                if rights.topics
            ), f"{address.routing_key} on {address.exchange}"


def test_the_users_of_cells_are_conductors_and_computes() -> None:
    assert set(OF_CELLS) == {"moor-conductor-c1", "moor-conductor-c2", "moor-compute-c1", "moor-compute-c2"}


@pytest.mark.parametrize(
    ("user", "who"),
    [
        ("moor-scheduler", BrokerUser("scheduler")),
        ("moor-conductor-a-b_c", BrokerUser("conductor", "a-b_c")),
        ("moor-app-shop", BrokerUser("", application="shop")),
        ("moor-app-conductor-c1", BrokerUser("", application="conductor-c1")),
        ("moor-cell-c1", None),
        ("moor-conductor", None),
        ("moor-conductor-", None),
        ("moor-conductor-C1", None),
        ("moor-compute-cell0", None),
        ("moor-scheduler-c1", None),
        ("moor-client", None),
        ("moor-app-", None),
        ("guest", None),
        ("", None),
    ],
)
def test_a_user_is_known_by_its_name_alone(user: str, who: BrokerUser | None) -> None:
    assert broker_user_of(user) == who


def test_a_conductor_reads_and_configures_only_what_is_its_own() -> None:
    rights = OF_CELLS["moor-conductor-c1"]
    for queue in objects_of(CELLS).queues:
        own = ("conductor.c1.work", "conductor.c1.questions")
        assert rights.may_read(queue.name) == (queue.name in own)
        assert not rights.may_configure(queue.name)
    # A right to the names of its answer queues would include exchanges of these names, without topic rights.
    assert not rights.may_configure("answers.moor-conductor-c1.p1")
    assert rights.may_declare_queue("answers.moor-conductor-c1.p1")
    assert not rights.may_declare_queue("answers.moor-conductor-c2.p1")
    assert not rights.may_read("answers.moor-conductor-c2.p1")
    assert not rights.may_bind(EVENTS, "#")


def test_bare_metal_orders_are_read_by_ironics_daemons_alone_on_a_cells_own_broker_too() -> None:
    of_cell = rights_by_user(objects_of(("c1",), (Site.CELL,)).exchanges, ("c1",), (Site.CELL,))
    for rights in (RIGHTS, of_cell):
        assert {user for user, each in rights.items() if each.may_read("ironic.c1.work")} == {
            "moor-ironic",
            "moor-operator",
        }
        for key, role in (
            ("deploy.c1", "conductor-c1"),
            ("undeploy.c1", "conductor-c1"),
            ("redeploy.c1", "conductor-c1"),
            ("deploy.progress.c1", "ironic"),
        ):
            may = {user for user, each in rights.items() if each.may_publish("moor.cell.c1", key)}
            assert may == {f"moor-{role}", "moor-operator"}, key


def test_only_an_operator_configures_more_than_queues_named_by_the_broker() -> None:
    applications = [Application("a", projects=("p",)), Application("b", admin=True)]
    rights = rights_by_user(objects_of(CELLS).exchanges, CELLS, applications=applications)
    for user, each in rights.items():
        assert (each.configure in ("^$", r"^(amq\.gen-.*)$")) == (user != "moor-operator"), user


@pytest.mark.parametrize(
    ("name", "projects", "admin"),
    [
        ("Shop", ("a",), False),
        ("", ("a",), False),
        ("x" * 41, ("a",), False),
        ("shop", (), False),
        ("shop", ("a",), True),
        ("shop", ("-",), False),
        ("shop", ("a.b",), False),
        ("shop", ("*",), False),
        ("shop", ("#",), False),
        ("shop", ("A",), False),
        ("shop", ("{username}",), False),
        ("shop", ("a" * 65,), False),
    ],
)
def test_an_application_that_would_get_more_than_its_projects_is_refused(
    name: str, projects: tuple[str, ...], *, admin: bool
) -> None:
    with pytest.raises(ValueError, match=r"name|project|admin"):
        Application(name, projects, admin)


def test_only_an_operator_may_enable_and_disable_hosts() -> None:
    may = {user for user, rights in RIGHTS.items() if rights.may_publish(API, "host.set")}

    assert may == {"moor-operator"}


def test_only_an_operator_writes_to_the_books_directly_and_cells_may_not_even_ask() -> None:
    for keys, who in (
        # Schedulers set the members of aggregates, by aggregate, and ask what an instance holds that is resized on its host.
        ([key for key in WRITES if key != "aggregates.set"], {"moor-operator"}),
        (["aggregates.set"], {"moor-operator", "moor-scheduler"}),
        (["quota.query.shop"], {"moor-operator", "moor-scheduler"}),
        (["consumer.query"], {"moor-operator", "moor-scheduler"}),
        (
            [
                "candidates",
                *("holders.query", "usages.query.shop", "names.query"),
            ],
            {"moor-operator"},
        ),
    ):
        for key in keys:
            assert {user for user, rights in RIGHTS.items() if rights.may_publish(PLACEMENT, key)} == who, key


def test_only_answering_roles_may_write_answers() -> None:
    may = {user for user, rights in RIGHTS.items() if rights.may_publish(REPLY, "answers.moor-app-shop.p1")}

    assert may == {user_of(role.name) for role in ROLES if role.answers or role.operates}


def test_a_cell_answers_operators_alone() -> None:
    def answer(to: str) -> set[str]:
        return {user for user, rights in RIGHTS.items() if rights.may_publish(REPLY, f"answers.{to}.p1")}

    of_cells = {user for user in RIGHTS if user.startswith(("moor-conductor-", "moor-compute-"))}
    assert of_cells
    assert of_cells <= answer("moor-operator")
    assert not of_cells & answer("moor-scheduler")
    assert not of_cells & answer("moor-app-shop")
    for queue in ("conductor.c1.questions", "compute.c1.questions"):
        assert queue in {each.name for each in objects_of(("c1",)).queues}
    asks = {
        user for user, rights in RIGHTS.items() if rights.may_publish("moor.cell.c1", "cell.books.query.c1")
    }
    assert asks == {"moor-operator"}


def test_only_schedulers_have_a_compute_tell_a_console_and_hear_it() -> None:
    may = {user for user, rights in RIGHTS.items() if rights.may_publish("moor.cell.c1", "console.tell.c1")}
    hear = {user for user, rights in RIGHTS.items() if rights.may_bind(EVENTS, "console.told.*")}

    assert may == hear == {"moor-scheduler", "moor-operator"}
    assert OF_CELLS["moor-compute-c1"].may_publish(EVENTS, "console.told.c1")
    assert not OF_CELLS["moor-compute-c1"].may_publish(EVENTS, "console.told.c2")
    assert not ADMINS.may_bind(EVENTS, "console.told.*")


def test_only_an_operator_uses_the_default_exchange() -> None:
    assert [user for user, rights in RIGHTS.items() if rights.may_publish("", "scheduler.requests")] == [
        "moor-operator"
    ]


def test_everything_that_a_role_reads_or_writes_exists() -> None:
    names = {exchange.name for exchange in EXCHANGES}
    queues = {queue.name for queue in QUEUES} | {application_queue(each, "*") for each in API_QUEUES}
    for role in ROLES:
        assert {grant.exchange for grant in (*role.writes, *role.listens)} <= names
        assert set(role.reads) <= queues
        for queue in role.reads:
            assert queue in {DEAD_QUEUE, *INBOXES} or retry_exchange_of(queue) in names, queue
    assert {binding.exchange for queue in QUEUES for binding in queue.bindings} <= names
    assert {kind.ROUTE.exchange for kind in ALL} <= names


def test_the_queues_of_an_application_take_what_those_for_all_take() -> None:
    shop = Application("shop", projects=("p1",))
    own = objects_of_application(shop)
    shared = {each.name: each for each in objects_of(CELLS).queues}

    assert [exchange.name for exchange in own.exchanges] == ["moor.api.shop"]
    assert [queue.name for queue in own.queues] == ["scheduler.requests.shop", "scheduler.questions.shop"]
    for queue in own.queues:
        beside = shared[queue.name.removesuffix(".shop")]
        assert queue.kind is beside.kind is kind_of(queue.name)
        assert [each.pattern for each in queue.bindings if each.exchange == shop.exchange] == [
            each.pattern for each in beside.bindings if each.exchange == API
        ]
        assert Binding("moor.retry.scheduler", queue.name) in queue.bindings
        assert retry_exchange_of(queue.name) == "moor.retry.scheduler"
        assert RIGHTS["moor-scheduler"].may_read(queue.name)
    may = [user for user, rights in RIGHTS.items() if rights.may_publish(shop.exchange, "build.request.p1")]
    assert may == ["moor-operator"]


def test_the_kind_of_a_queue_follows_from_its_name() -> None:
    for queue in objects_of(CELLS).queues:
        assert kind_of(queue.name) is queue.kind, queue.name
    assert kind_of("conductor.c1.questions") is QueueKind.QUESTIONS
    assert kind_of("of-somebody-else") is None


def test_a_queue_with_retries_is_reached_by_its_own_name() -> None:
    for queue in objects_of(CELLS).queues:
        back = [binding.pattern for binding in queue.bindings if binding.exchange.startswith(RETRY)]
        assert back == ([queue.name] if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS) else [])


def test_a_writer_to_a_retry_exchange_may_read_every_queue_bound_to_it() -> None:
    # A key that a user may publish opens others: RabbitMQ also routes by the keys in a CC header, without a check.
    reached = [
        (user, queue.name)
        for user, rights in RIGHTS.items()
        for queue in objects_of(CELLS).queues
        for binding in queue.bindings
        if binding.exchange.startswith(RETRY) and rights.may_write(binding.exchange)
    ]
    assert reached
    assert [(user, queue) for user, queue in reached if not RIGHTS[user].may_read(queue)] == []


def test_nothing_is_put_back_into_an_inbox() -> None:
    assert {queue.name for queue in QUEUES if queue.name in INBOXES} == {IRONIC_EVENTS}
    with pytest.raises(ValueError, match="is an inbox"):
        retry_exchange_of(IRONIC_EVENTS)


def test_ironic_alone_reads_and_binds_its_inbox_and_gets_no_rpc() -> None:
    for user, rights in RIGHTS.items():
        may = user in ("moor-ironic", "moor-operator")
        assert rights.may_read(IRONIC_EVENTS) is may, user
        assert rights.may_bind(IRONIC, "ironic_versioned_notifications.*") is may, user
        assert rights.may_publish(IRONIC, "ironic_versioned_notifications.info") is (user == "moor-operator")
    for key in ("#", "*", "*.*", "ironic.#", "ironic.conductor_manager"):
        assert not RIGHTS["moor-ironic"].may_bind(IRONIC, key), key


def test_a_broker_of_ironics_own_has_its_inbox_and_nothing_else() -> None:
    there = objects_of((), (Site.IRONIC,))

    assert {exchange.name for exchange in there.exchanges} == {IRONIC}
    assert {queue.name for queue in there.queues} == INBOXES
    assert {*rights_by_user(there.exchanges, (), (Site.IRONIC,))} == {"moor-ironic"}


def test_placement_and_events_are_on_every_broker_and_the_api_only_on_its_own() -> None:
    of_cell = objects_of(("c1",), (Site.CELL,))
    of_api = objects_of((), (Site.API,))

    assert API not in {exchange.name for exchange in of_cell.exchanges}
    assert {PLACEMENT, EVENTS, DEAD, "moor.cell.c1"} <= {exchange.name for exchange in of_cell.exchanges}
    assert {API, PLACEMENT, EVENTS} <= {exchange.name for exchange in of_api.exchanges}
    assert CELL not in {exchange.name for exchange in of_api.exchanges}
    assert {queue.name for queue in of_cell.queues} >= {
        "placement.claims",
        "conductor.c1.work",
        DEAD_QUEUE,
    }


def test_a_delivery_limit_that_would_dead_letter_innocent_messages_is_refused() -> None:
    with pytest.raises(ValueError, match="deliveries_max is 2, must be at least 20"):
        Limits(deliveries_max=2)


def matches(pattern: str, key: str) -> bool:
    """AMQP's matching rule in its simplest form."""
    match pattern.split("."), key.split("."):
        case [], []:
            return True
        case ["#", *rest], words:
            return any(matches(".".join(rest), ".".join(words[n:])) for n in range(len(words) + 1))
        case [word, *rest], [first, *words] if word in ("*", first):
            return (not rest and not words) or (bool(rest) and matches(".".join(rest), ".".join(words)))
    return False
