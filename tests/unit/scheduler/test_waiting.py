"""Which hosts may have room for what waits, and how many are tried: no change is lost, and none is searched twice."""

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from bus.messages.build import BuildInstance, ClaimRefused
from engine.choosing.choosing import first_that_fit
from engine.choosing.verdicts import SearchRefused
from engine.flavors import InstanceId, RequestId, Wait
from engine.hosts import Aggregate
from engine.inventories import GroupId, GroupMember, Holder, ProviderUsage, Share
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, NoValidHost
from moor.instances.requests import wait_of
from scheduler_worker import waiting
from scheduler_worker.core.instances.rows import KeptRequest, accepted, after_failed_wake, waits
from scheduler_worker.waiting import PAUSE_S_FIRST, PAUSE_S_MAX, WaitingSpecs
from tests.contracts.placement_orders import aggregate, consumer, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, usage_of, vcpus

SMALL, LARGE = b"small", b"large"
NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
FULL = a_state("h1", vcpus(4, used=4))


@pytest.fixture(autouse=True)
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; a test may change it."""
    time = [100.0]
    monkeypatch.setattr(waiting, "_now_s", lambda: time[0])
    return time


class Told:
    """The specs that a full host would serve: small ones need 1 processor, large ones 3."""

    def __init__(self, picture: Picture | None = None) -> None:
        self.picture = picture or a_picture(FULL, a_state("h2", vcpus(4, used=4)))
        self.specs = WaitingSpecs(self.picture, standard_plugins())
        self.times = 0
        self.specs.tell(self._count)
        self.specs.learn(SMALL, [a_spec(1)])
        self.specs.learn(LARGE, [a_spec(3)])

    def _count(self) -> None:
        self.times += 1


def usage(name: str, used: int, revision: int) -> ProviderUsage:
    return usage_of(a_state(name), used, revision)


def test_what_becomes_free_is_told_and_counted() -> None:
    told = Told()
    assert told.specs.room() == {}

    told.picture.use([usage("h1", 2, 2)])

    assert told.times == 1
    assert told.specs.room() == {SMALL: 2}
    told.picture.use([usage("h2", 0, 2)])
    assert told.specs.room() == {SMALL: 6, LARGE: 1}


def test_a_change_before_the_row_was_committed_is_seen_when_the_spec_is_learned() -> None:
    told = Told()
    assert told.specs.room() == {}
    told.picture.use([usage("h1", 3, 2)])
    told.specs.room()
    told.specs.failed(SMALL, may_pass=False)

    # A row is written by another search, which failed before this change.
    told.specs.learn(SMALL, [a_spec(1)])
    told.specs.succeeded(SMALL)

    assert told.specs.room() == {SMALL: 1}


def test_a_host_that_only_takes_something_is_not_judged() -> None:
    told = Told(a_picture(a_state("h1", vcpus(4, used=3))))
    assert told.specs.room() == {SMALL: 1}
    told.picture.use([usage("h1", 4, 2)])

    assert told.times == 0
    assert told.specs.room() == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda picture: picture.put_hosts([a_host("h3", sequence=2)]),
        lambda picture: picture.apply([a_state("h4", vcpus(4))]),
        lambda picture: picture.measure(provider("h3"), {"temperature": 20.0}),
        lambda picture: picture.cache_images(provider("h3"), ("debian",)),
        lambda picture: picture.put_aggregates([Aggregate(id=aggregate("a"), name="a", sequence=1)]),
        lambda picture: picture.groups.leave([Holder(consumer=consumer("m"), attempt=1)]),
        lambda picture: picture.drop([(consumer("c"), 1)]),
    ],
    ids=["enabled", "new", "metrics", "images", "aggregates", "a member left", "a choice dropped"],
)
def test_each_kind_of_change_is_told(change: Callable[[Picture], object]) -> None:
    told = Told(a_picture(FULL, a_state("h3", vcpus(4)), hosts=(a_host("h1"), a_host("h3", mode="draining"))))
    member = GroupMember(
        group=GroupId(aggregate("g")), consumer=consumer("m"), attempt=1, host=provider("h1")
    )
    told.picture.groups.join([member])
    told.picture.hold([(consumer("c"), 1, Share(host=provider("h1"), amounts=()))])
    assert told.specs.room() == {}
    before = told.times

    change(told.picture)

    assert told.times > before


def test_an_enabled_host_has_room() -> None:
    told = Told(a_picture(a_state("h3", vcpus(4)), hosts=(a_host("h3", mode="draining"),)))
    assert told.specs.room() == {}
    told.picture.put_hosts([a_host("h3", sequence=2)])
    assert told.specs.room() == {SMALL: 4, LARGE: 1}


def test_after_a_search_that_failed_only_new_changes_count_and_after_a_pause(now_s: list[float]) -> None:
    told = Told()
    told.picture.use([usage("h1", 2, 2)])
    assert told.specs.room() == {SMALL: 2}

    told.specs.failed(SMALL, may_pass=False)
    assert told.specs.room() == {}
    told.picture.use([usage("h1", 1, 3)])
    assert told.specs.room() == {LARGE: 1}
    assert told.specs.rest_s() == 0
    told.specs.failed(LARGE, may_pass=False)
    assert told.specs.rest_s() == pytest.approx(PAUSE_S_FIRST)
    now_s[0] += PAUSE_S_FIRST
    assert told.specs.room() == {SMALL: 3}
    for _ in range(30):
        told.specs.failed(SMALL, may_pass=True)
        assert told.specs.room() == {}
    assert told.specs.rest_s() == pytest.approx(PAUSE_S_MAX)


def test_nothing_is_recorded_while_nothing_waits() -> None:
    told = Told()
    learned = told.specs.learned()
    # Learned once more while the database was read: a row has come.
    told.specs.learn(SMALL, [a_spec(1)])
    for digest in (SMALL, LARGE):
        told.specs.forget(digest, learned)
    assert SMALL in told.specs.learned()
    assert LARGE not in told.specs.learned()

    told.specs.forget(SMALL, told.specs.learned())
    assert not told.specs
    told.picture.use([usage("h1", 0, 2)])
    assert told.times == 0
    assert not told.picture.touched.rows


def test_rows_of_others_are_read_and_own_ones_are_known() -> None:
    told = Told()
    told.specs.unread = set()
    other = consumer("o")
    told.specs.heard(other)
    assert told.specs.unread == {other}
    told.specs.doubt()
    assert told.specs.unread is None


@given(
    rows=st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=12),
    room=st.fixed_dictionaries({digest: st.integers(1, 6) for digest in (b"a", b"b", b"c")}),
)
def test_as_many_are_tried_as_fit_together_for_sure_by_the_least_of_their_rooms(
    rows: list[bytes], room: dict[bytes, int]
) -> None:
    taken = first_that_fit(rows, room)

    def fit(count: int) -> bool:
        return all(room[digest] >= count for digest in rows[:count])

    assert fit(taken)
    assert taken == len(rows) or not fit(taken + 1)
    assert taken or not rows


def test_members_elsewhere_are_told() -> None:
    """A member that moved leaves its old host to the others of its group."""
    told = Told()
    at = GroupMember(group=GroupId(aggregate("g")), consumer=consumer("m"), attempt=1, host=provider("h1"))
    told.picture.groups.join([at])
    before = told.times
    told.picture.touched.take()
    told.picture.groups.join([structs.replace(at, attempt=2, host=provider("h2"))])
    assert told.times > before


def test_a_priority_without_a_wait_is_an_error_of_the_command() -> None:
    assert wait_of(None, None) is None
    assert wait_of(60, None) == Wait(for_s=60)
    assert wait_of(60, 7) == Wait(for_s=60, priority=7)
    with pytest.raises(typer.BadParameter, match="--priority is 7, and nothing waits"):
        wait_of(None, 7)


def test_a_search_that_fails_again_leaves_its_reasons_and_no_event() -> None:
    build = BuildInstance(request_id=RequestId(UUID(int=1)), wait=Wait(for_s=60))
    (row,) = accepted(build, [InstanceId(consumer("a"))], NOON, NOON)
    first, second = (
        NoValidHost(hosts=1, steps=(FunnelStep(step="capacity", removed=1, example=example),))
        for example in ("h1: VCPU asked 1, free 0", "h1: VCPU asked 2, free 1")
    )
    waiting = waits(row, NOON, KeptRequest(SMALL, b""), priority=0, reason="no host", no_valid_host=first)
    assert waiting is not None
    said = structs.replace(waiting, unsaid=False)
    by_h1 = ClaimRefused(host="h1", reason="VCPU asked 2, free 1")

    again = after_failed_wake(said, second, (by_h1,))
    assert again is not None
    assert (again.told.no_valid_host, again.told.refusals) == (second, (by_h1,))
    assert (again.told.waiting, again.told.sequence) == (said.told.waiting, said.told.sequence + 1)
    assert not again.has_to_say
    # The next message has the new reasons.
    unsaid = after_failed_wake(waiting, second, (by_h1,))
    assert unsaid is not None
    assert unsaid.has_to_say
    assert after_failed_wake(again, second, (by_h1,)) is None
    refused = after_failed_wake(again, SearchRefused("12 claims were refused", may_pass=True), (by_h1,))
    assert refused is not None
    assert (refused.told.reason, refused.told.no_valid_host) == ("12 claims were refused", None)
