"""Server groups against slow and obvious references: placement's judgement of claims, and the scheduler's choice."""

from hypothesis import given
from hypothesis import strategies as st

from engine.choosing.choosing import Chosen, choose
from engine.inventories import GroupId, GroupMember, ServerGroup
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import (
    an_id,
    consumer,
    provider,
)
from tests.plugins import standard_plugins
from tests.properties.bounds import BOUNDED
from tests.unit.choosing.scheduler_worlds import a_picture, a_state, vcpus

APART = ServerGroup(id=GroupId(an_id("apart")), policy="anti-affinity")
PAIRS = ServerGroup(id=GroupId(an_id("pairs")), policy="anti-affinity", max_per_host=2)
TOGETHER = ServerGroup(id=GroupId(an_id("together")), policy="affinity")
SOFT = ServerGroup(id=GroupId(an_id("soft")), policy="soft-anti-affinity")
GROUPS = (APART, PAIRS, TOGETHER, SOFT)


@BOUNDED
@given(
    st.sampled_from(GROUPS),
    st.lists(st.tuples(st.sampled_from(("h0", "h1", "h2", "h3", "gone")), st.booleans()), max_size=6),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.integers(1, 6),
)
def test_every_choice_keeps_the_group_and_is_refused_only_where_no_host_is_left(
    group: ServerGroup, members: list[tuple[str, bool]], room: list[int], instances: int
) -> None:
    names = [f"h{number}" for number in range(4)]
    picture = a_picture(
        *[
            a_state(name, vcpus(max(free, 1), 0 if free else 1), internal=number + 1)
            for number, (name, free) in enumerate(zip(names, room, strict=True))
        ]
    )
    for number, (host, is_answered) in enumerate(members):
        member = GroupMember(group=group.id, consumer=consumer(str(number)), attempt=1, host=provider(host))
        if is_answered:
            picture.groups.join([member])
        else:
            picture.groups.hold(member)

    outcomes = choose(
        picture,
        [InstanceSpec(amounts=(("VCPU", 1),), server_group=group)] * instances,
        standard_plugins(),
        salt=3,
    )

    there, left = [host for host, _ in members], dict(zip(names, room, strict=True))
    for outcome in outcomes:
        fitting = {
            name
            for name in names
            if left[name] > 0
            and not (group.policy == "anti-affinity" and there.count(name) >= group.max_per_host)
            and not (group.policy == "affinity" and any(host != name for host in there))
        }
        if isinstance(outcome, NoValidHost):
            # Two hosts that both have members of an affinity group: no rule says which of them is right.
            assert not fitting
            continue
        assert isinstance(outcome, Chosen)
        name = outcome.choice.name
        assert left[name] > 0
        assert group.policy != "anti-affinity" or there.count(name) < group.max_per_host
        assert group.policy != "affinity" or not there or name in there
        there.append(name)
        left[name] -= 1
