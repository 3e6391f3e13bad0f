"""Which messages of a batch are handled together, and in which order."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st

from bus.message import Message
from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.moves import EndMove, MoveInstance
from bus.messages.projects import CreateGroup, DeleteGroup
from bus.workers.handlers import Handler, Handlers, Received, Said, Weighed, runs
from engine.flavors import RequestId, instance_id_of
from engine.inventories import GroupId

REQUESTS = [RequestId(uuid5(UUID(int=0), str(number))) for number in range(4)]
INSTANCES = [instance_id_of(request, 0) for request in REQUESTS]


def handler() -> Handler:
    async def on_messages(_asks: Sequence[Received[Any]], _tx: object) -> Sequence[Said]:
        return ()

    return on_messages


on_moves, on_groups = handler(), handler()
HANDLERS: Handlers = {
    BuildInstance: Weighed(handler(), lambda _: 1, 3),
    DeleteInstance: handler(),
    MoveInstance: on_moves,
    EndMove: on_moves,
    CreateGroup: on_groups,
    DeleteGroup: on_groups,
}
numbers = st.integers(0, len(REQUESTS) - 1)
messages = st.one_of(
    st.builds(lambda at: BuildInstance(request_id=REQUESTS[at]), numbers),
    st.builds(
        lambda at: BuildInstance(request_id=RequestId(UUID(int=1)), instance_ids=(INSTANCES[at],)), numbers
    ),
    st.builds(lambda at: BuildInstance(request_id=REQUESTS[0], same_host=(INSTANCES[at],)), numbers),
    st.builds(lambda at: DeleteInstance(instance=INSTANCES[at]), numbers),
    st.builds(
        lambda at, other: MoveInstance(
            request_id=RequestId(UUID(int=at << 100)),
            instance=INSTANCES[at],
            kind="migrate",
            together=(INSTANCES[other],),
        ),
        numbers,
        numbers,
    ),
    st.builds(
        lambda at: EndMove(request_id=RequestId(UUID(int=at << 100)), instance=INSTANCES[at], how="confirm"),
        numbers,
    ),
    st.just(CreateGroup(id=GroupId(UUID(int=7)), policy="affinity")),
)


def grouped(batch: Sequence[Message]) -> list[Sequence[tuple[int, Message]]]:
    """The groups, each message with its place in the queue."""
    made = runs(list(enumerate(batch)), batch, HANDLERS)
    for handler, items in made:
        assert items
        assert all(HANDLERS.get(type(message)) == handler for _, message in items)
    return [items for _, items in made]


@given(st.lists(messages, min_size=1, max_size=14))
def test_messages_about_the_same_thing_stay_in_order(batch: list[Message]) -> None:
    order = [each for items in grouped(batch) for each in items]
    assert sorted(place for place, _ in order) == list(range(len(batch)))
    for at, (place, message) in enumerate(order):
        for later, other in order[at + 1 :]:
            if later < place:
                one, two = message.about(), other.about()
                assert one is not None, "it passed what came before it"
                assert two is not None, "it was passed"
                assert not {*one} & {*two}


def test_a_delete_does_not_pass_the_build_of_its_instance() -> None:
    build, delete = BuildInstance(request_id=REQUESTS[0]), DeleteInstance(instance=INSTANCES[0])
    other = DeleteInstance(instance=INSTANCES[1])
    assert grouped([other, build, delete]) == [[(0, other)], [(1, build)], [(2, delete)]]
