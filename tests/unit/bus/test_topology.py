"""No cell calls up, and every message finds its way: both checked on the table itself."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from msgspec import structs

from bus.definitions import rights_by_user, rights_of
from bus.message import API, AnswerMessage, Kind, Message, QueueName, RoleName, Route, Scope, type_of
from bus.messages import ALL, TYPES
from bus.messages.build import AskInstances
from bus.messages.placement import ClaimResources, ReportInventory
from bus.queues import (
    RETRY,
    Binding,
    Limits,
    matches,
)
from bus.topology import (
    Application,
    destination_of,
    kind_of,
    objects_of,
    objects_of_application,
    retry_exchange_of,
)
from bus.workers.authority import answering
from tests.unit.examples import EXAMPLES

CELLS = ("c1", "c2")
ORDER = Route(Kind.ORDER, "placement.work", by=("operator",))
RIGHTS = rights_by_user(objects_of(CELLS).exchanges, CELLS)
# Messages that only an operator may publish.
FOR_OPERATORS = {type_of(kind) for kind in ALL if kind.ROUTE.by == ("operator",)}
ADMINS = rights_of(Application("admin", admin=True).role, [each.name for each in objects_of(CELLS).exchanges])


def is_base(kind: type[Message]) -> bool:
    """Is this type only a base of message types? It has no tag of its own."""
    return type_of(kind) == kind.__name__


def problems_of(kind: type[Message], types: Mapping[str, type[Message]] = TYPES) -> Iterator[str]:
    """The mistakes in the tag and the route of a message type."""
    if is_base(kind) and not kind.__subclasses__():
        yield "it has no tag: tag='...' in its class line"
    if types.get(type_of(kind), kind) is not kind:
        yield f"its tag {type_of(kind)!r} is that of another type, too"
    if is_base(kind) or issubclass(kind, AnswerMessage):
        return
    stated_by = next((each for each in kind.__mro__ if "ROUTE" in vars(each)), None)
    # What another message says of itself may not be so for this one.
    if stated_by is None or (stated_by is not kind and not is_base(stated_by)):
        yield "neither it nor a base that is no message states a ROUTE"
    else:
        yield from problems_of_route(kind, types)


def problems_of_route(kind: type[Message], types: Mapping[str, type[Message]]) -> Iterator[str]:
    route, fields = kind.ROUTE, kind.__struct_fields__
    ends = {Scope.CELL: "cell", Scope.PROJECT: "project"}.get(kind.SCOPE, "")
    # A question may name a cell by which it chooses; the cell of any other message is the one that its sender speaks for.
    is_of_cell = "cell" in fields and route.kind is not Kind.QUESTION
    if (ends and ends not in fields) or (is_of_cell and ends != "cell"):
        yield f"its SCOPE is {kind.SCOPE.value!r}, and its fields are {', '.join(fields)}"
    if route.to not in get_args(QueueName) and (route.to or route.kind is not Kind.EVENT):
        yield f"it goes to the queue {route.to!r}, must be one of {', '.join(get_args(QueueName))}"
    if not route.by or not {*route.by, *route.heard_by} <= {*get_args(RoleName)}:
        yield f"it is sent by {route.by}, and heard by {route.heard_by}: roles are {', '.join(get_args(RoleName))}"
    if route.kind is Kind.QUESTION and not issubclass(types.get(route.answer, Message), AnswerMessage):
        yield f"it is answered by {route.answer!r}, which is no answer"
    if route.answer and route.answer not in types:
        yield f"it is answered by {route.answer!r}, which is no message"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"ROUTE": ORDER, "__annotations__": {"cell": str}}, "its SCOPE is 'NOTHING', and its fields are cell"),
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
    types = {**TYPES, "trial": kind} if tag == "trial" else TYPES

    assert [each for each in problems_of(kind, types) if each.startswith(problem)]


def test_no_type_says_something_wrong_about_itself() -> None:
    defined, further = [Message], [Message]
    while further:
        further = [
            kind
            for base in further
            for kind in base.__subclasses__()
            if kind.__module__.startswith("bus.message")
        ]
        defined += further

    assert len(defined) > len(ALL)
    assert not [f"{kind.__name__}: {each}" for kind in defined for each in problems_of(kind)]


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


def test_a_delivery_limit_that_would_dead_letter_innocent_messages_is_refused() -> None:
    with pytest.raises(ValueError, match="deliveries_max is 2, must be at least 20"):
        Limits(deliveries_max=2)
