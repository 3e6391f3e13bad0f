"""The promise of no up-calls and that every message finds its way, read off the table itself."""

import pytest

from bus.definitions import rights_by_user
from bus.message import type_of
from bus.messages import ALL
from bus.topology import (
    API,
    BOOK_QUESTIONS,
    BOOK_WRITES,
    CELL,
    DEAD,
    DEAD_QUEUE,
    EVENTS,
    EXCHANGES,
    PLACEMENT,
    QUEUES,
    REPLY,
    RETRY,
    ROLES,
    ROUTES,
    Kind,
    Limits,
    QueueKind,
    Site,
    address_of,
    cell_of_user,
    objects_of,
    user_of,
)
from tests.unit.examples import EXAMPLES

CELLS = ("c1", "c2")
RIGHTS = rights_by_user(objects_of(CELLS).exchanges, CELLS)
# What only a person may say.
FOR_OPERATORS = {"host.set", *BOOK_WRITES}
OF_CELLS = {user: rights for user, rights in RIGHTS.items() if cell_of_user(user)}


def test_every_message_has_a_route_and_every_route_a_message() -> None:
    assert {type_of(kind) for kind in ALL} == set(ROUTES)


def test_every_order_and_question_finds_a_queue() -> None:
    queues = objects_of(CELLS).queues
    for example in EXAMPLES:
        address = address_of(example)
        if address.kind.must_be_routed:
            assert any(
                binding.exchange == address.exchange and matches(binding.pattern, address.routing_key)
                for queue in queues
                for binding in queue.bindings
            ), f"{address.routing_key} on {address.exchange}"


def test_some_role_may_say_every_message() -> None:
    for example in EXAMPLES:
        address = address_of(example)
        if address.kind is not Kind.ANSWER and type_of(example) not in FOR_OPERATORS:
            assert any(
                rights.may_publish(address.exchange, address.routing_key)
                for rights in RIGHTS.values()
                if rights.topics
            ), f"{address.routing_key} on {address.exchange}"


def test_a_cell_may_not_speak_to_the_level_above_nor_for_another_cell() -> None:
    assert set(OF_CELLS) == {"moor-cell-c1", "moor-cell-c2"}
    rights = OF_CELLS["moor-cell-c1"]
    for exchange, key in (
        (API, "build.request"),
        (API, "instance.delete"),
        *((PLACEMENT, key) for key in (*BOOK_WRITES, *BOOK_QUESTIONS)),
        (PLACEMENT, "claim.c1"),
        (PLACEMENT, "swap.c2"),
        (PLACEMENT, "inventory.report.c2"),
        (EVENTS, "instance.active.c2"),
        (EVENTS, "providers.changed"),
        ("moor.cell.c2", "place.c2"),
        (REPLY, "answers.moor-scheduler.x"),
        (RETRY, "scheduler.requests"),
        (RETRY, "conductor.c2.work"),
        (DEAD, "scheduler.requests"),
        ("", "scheduler.requests"),
        ("amq.topic", "anything"),
    ):
        assert not rights.may_publish(exchange, key), f"{key} on {exchange!r}"


def test_a_cell_may_do_its_work() -> None:
    rights = OF_CELLS["moor-cell-c1"]
    for exchange, key in (
        (PLACEMENT, "swap.c1"),
        (PLACEMENT, "release.c1"),
        (PLACEMENT, "inventory.report.c1"),
        (EVENTS, "instance.active.c1"),
        ("moor.cell.c1", "spawn.failed.c1"),
        ("moor.retry.c1", "conductor.c1.work"),
        (DEAD, "compute.c1.work"),
    ):
        assert rights.may_publish(exchange, key), f"{key} on {exchange!r}"
    assert rights.may_read("conductor.c1.work")
    assert rights.may_read("compute.c1.work")
    assert rights.may_declare_queue("answers.moor-cell-c1.p1")


def test_a_cell_reads_and_configures_only_what_is_its_own() -> None:
    rights = OF_CELLS["moor-cell-c1"]
    for queue in objects_of(CELLS).queues:
        assert rights.may_read(queue.name) == (queue.name in ("conductor.c1.work", "compute.c1.work"))
        assert not rights.may_configure(queue.name)
    # A right to its answer queues' names would be one to exchanges of these names, past all topic rights.
    assert not rights.may_configure("answers.moor-cell-c1.p1")
    assert not rights.may_declare_queue("answers.moor-cell-c2.p1")
    assert not rights.may_read("answers.moor-cell-c2.p1")
    assert not rights.may_bind(EVENTS, "#")


def test_only_an_operator_may_say_whether_a_host_is_used() -> None:
    may = {user for user, rights in RIGHTS.items() if rights.may_publish(API, "host.set")}

    assert may == {"moor-operator"}
    assert RIGHTS["moor-client"].may_publish(API, "host.query")


def test_only_an_operator_writes_the_books_by_name_and_cells_do_not_even_ask() -> None:
    for keys, who in (
        (BOOK_WRITES, {"moor-operator"}),
        (BOOK_QUESTIONS, {"moor-client", "moor-operator"}),
    ):
        for key in keys:
            assert {user for user, rights in RIGHTS.items() if rights.may_publish(PLACEMENT, key)} == who, key


def test_only_who_answers_may_write_answers() -> None:
    may = {user for user, rights in RIGHTS.items() if rights.may_publish(REPLY, "answers.moor-client.p1")}

    assert may == {user_of(role.name) for role in ROLES if role.answers or role.operates}


def test_nobody_but_an_operator_uses_the_default_exchange() -> None:
    assert [user for user, rights in RIGHTS.items() if rights.may_publish("", "scheduler.requests")] == [
        "moor-operator"
    ]


def test_everything_that_is_read_or_written_exists() -> None:
    names = {exchange.name for exchange in EXCHANGES}
    queues = {queue.name for queue in QUEUES}
    for role in ROLES:
        assert {grant.exchange for grant in (*role.writes, *role.listens)} <= names
        assert set(role.reads) <= queues
    assert {binding.exchange for queue in QUEUES for binding in queue.bindings} <= names
    assert {route.exchange for route in ROUTES.values()} <= names


def test_what_can_be_retried_is_reached_by_its_own_name() -> None:
    for queue in objects_of(CELLS).queues:
        back = [binding.pattern for binding in queue.bindings if binding.exchange.startswith(RETRY)]
        assert back == ([queue.name] if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS) else [])


def test_who_may_write_to_an_exchange_that_brings_back_may_read_every_queue_bound_to_it() -> None:
    # A key that may be used opens the others: RabbitMQ routes by those in a CC header too, unasked.
    for user, rights in OF_CELLS.items():
        for queue in objects_of(CELLS).queues:
            for binding in queue.bindings:
                if binding.exchange.startswith(RETRY) and rights.may_write(binding.exchange):
                    assert rights.may_read(queue.name), f"{user} reaches {queue.name} by {binding.exchange}"


def test_placement_and_events_stand_on_every_broker_and_the_api_only_on_its_own() -> None:
    of_cell = objects_of(("c1",), (Site.CELL,))
    of_api = objects_of((), (Site.API,))

    assert API not in {exchange.name for exchange in of_cell.exchanges}
    assert {PLACEMENT, EVENTS, DEAD, "moor.cell.c1"} <= {exchange.name for exchange in of_cell.exchanges}
    assert {API, PLACEMENT, EVENTS} <= {exchange.name for exchange in of_api.exchanges}
    assert CELL not in {exchange.name for exchange in of_api.exchanges}
    assert {queue.name for queue in of_cell.queues} >= {
        "placement.questions",
        "conductor.c1.work",
        DEAD_QUEUE,
    }


def test_a_delivery_limit_that_would_bury_innocents_is_refused() -> None:
    with pytest.raises(ValueError, match="deliveries_max is 2, must be at least 20"):
        Limits(deliveries_max=2)


def matches(pattern: str, key: str) -> bool:
    """AMQP's rule, the slow and obvious way."""
    match pattern.split("."), key.split("."):
        case [], []:
            return True
        case ["#", *rest], words:
            return any(matches(".".join(rest), ".".join(words[n:])) for n in range(len(words) + 1))
        case [word, *rest], [first, *words] if word in ("*", first):
            return (not rest and not words) or (bool(rest) and matches(".".join(rest), ".".join(words)))
    return False
