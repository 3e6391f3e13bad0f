"""Which word about a node counts, and when a node is read again."""

from typing import Any

import pytest
from msgspec.structs import replace

from engine.inventories import ConsumerId
from ironic_sync.core.notifications import (
    AllocationNotified,
    NodeDoubted,
    UnreadableNotification,
)
from ironic_sync.core.offers import CellMap
from ironic_sync.core.ordering import (
    AHEAD,
    AHEAD_US_MAX,
    ALLOCATION_CHANGED,
    DELETED_SPEAKS,
    DOUBTS_MAX,
    FIRST_NOTIFICATION,
    NOT_LISTED,
    OLDER_THAN_READ,
    TRAITS_CHANGED,
    UNREADABLE,
    OrderingRules,
    held_missing,
    not_listed,
    read_again,
    read_as_gone,
)
from ironic_sync.core.settling import NodePolicy, after_change
from kit.times import moment
from tests.unit.ironic.captured import (
    API,
    CONDUCTOR,
    INSTANCE,
    NODE_ID,
    a_node,
    a_word,
)
from tests.unit.ironic.node_rows import (
    KNOWN,
    SECOND,
    SKEW_US,
    T0,
    UNKNOWN,
    WITH_REST,
    WITHOUT_REST,
    after,
    is_offered,
)

POLICY = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)


@pytest.mark.parametrize("rules", [WITH_REST, WITHOUT_REST], ids=["with REST", "without"])
def test_the_newest_word_wins_and_an_older_or_equal_one_is_dropped(rules: OrderingRules) -> None:
    row = after(KNOWN, a_word(T0, maintenance=True), rules=rules)

    assert row.node == a_node(maintenance=True)
    assert (row.heard_at_us, row.heard_from) == (T0, API)
    assert after(row, a_word(T0 - 1), rules=rules) is row
    assert after(row, a_word(T0), rules=rules) is row


def test_no_word_touches_the_version() -> None:
    row = after(KNOWN, a_word(T0, maintenance=True), a_word(T0 + 1, CONDUCTOR))

    assert row.version == KNOWN.version


def test_the_first_word_of_an_unknown_node_is_believed_and_the_node_is_read() -> None:
    row = after(UNKNOWN, a_word(T0))

    assert row.node == a_node()
    assert row.doubts == (FIRST_NOTIFICATION,)
    assert not row.is_doubted
    assert after(UNKNOWN, a_word(T0), rules=WITHOUT_REST).doubts == ()


def test_the_shard_that_was_read_stays_since_no_notification_has_it() -> None:
    row = after(replace(KNOWN, node=a_node(shard="s1")), a_word(T0, maintenance=True))

    assert row.node == a_node(maintenance=True, shard="s1")


@pytest.mark.parametrize("first_is_free", [True, False])
@pytest.mark.parametrize("second_is_free", [True, False])
@pytest.mark.parametrize("apart_us", [-SKEW_US + 1, -1, 0, 1, SKEW_US - 1])
def test_two_publishers_within_the_skew_are_doubted_and_the_node_held_if_either_says_unavailable(
    first_is_free: bool,  # noqa: FBT001
    second_is_free: bool,  # noqa: FBT001
    apart_us: int,
) -> None:
    first = a_word(T0, API, maintenance=not first_is_free, name="first")
    second = a_word(T0 + apart_us, CONDUCTOR, maintenance=not second_is_free, name="second")

    row = after(KNOWN, first, second)

    assert row.node == (second if apart_us > 0 else first).node
    assert row.doubts == (f"notifications of {API} and {CONDUCTOR} are nearer than 2000 ms",)
    assert row.is_doubted == (not (first_is_free and second_is_free))
    assert is_offered(row) == (first_is_free and second_is_free)
    assert after(row, second) is row


@pytest.mark.parametrize("apart_us", [SKEW_US, SKEW_US + 1])
def test_two_publishers_farther_apart_than_the_skew_are_in_order(apart_us: int) -> None:
    row = after(KNOWN, a_word(T0, maintenance=True), a_word(T0 + apart_us, CONDUCTOR))

    assert is_offered(row)
    assert row.doubts == ()
    assert after(row, a_word(T0, maintenance=True)) is row


def test_two_publishers_that_say_the_same_are_not_doubted() -> None:
    row = after(KNOWN, a_word(T0), a_word(T0 + 1, CONDUCTOR))

    assert row.doubts == ()
    assert row.heard_from == CONDUCTOR


def test_words_of_one_publisher_are_in_order_however_near() -> None:
    row = after(KNOWN, a_word(T0, maintenance=True), a_word(T0 + 1))

    assert is_offered(row)
    assert row.doubts == ()


def test_a_node_that_is_held_stays_held_until_it_is_read() -> None:
    held = after(KNOWN, a_word(T0, maintenance=True), a_word(T0 + 1, CONDUCTOR))

    failed = NodeDoubted(id=NODE_ID, doubt="update ended in an error")
    later = after(held, a_word(T0 + 60 * SECOND, CONDUCTOR, name="later"), failed)

    assert not is_offered(later)
    assert is_offered(read_again(later, a_node(), later.version, T0 + 61 * SECOND) or UNKNOWN)


def test_changed_traits_are_believed_and_read_again_without_holding_the_node() -> None:
    row = after(KNOWN, a_word(T0, kind="update", traits=("CUSTOM_A",)))

    assert row.node == a_node(traits=("CUSTOM_A",))
    assert row.doubts == (TRAITS_CHANGED,)
    assert is_offered(row)
    assert after(KNOWN, a_word(T0, kind="update", name="n")).doubts == ()


def test_an_error_of_a_state_change_is_believed_and_read_again() -> None:
    row = after(KNOWN, a_word(T0, doubt="provision_set ended in an error", provision_state="error"))

    assert row.node == a_node(provision_state="error")
    assert row.doubts == ("provision_set ended in an error",)


def test_an_error_of_a_request_changes_nothing_but_has_the_node_read() -> None:
    failed = NodeDoubted(id=NODE_ID, doubt="delete ended in an error")

    row = after(KNOWN, failed)

    assert row == replace(KNOWN, doubts=("delete ended in an error",))
    assert after(row, failed) is row
    assert after(KNOWN, failed, rules=WITHOUT_REST) is KNOWN


def an_allocation(**fields: Any) -> AllocationNotified:
    return AllocationNotified(
        **{"allocation": ConsumerId(INSTANCE), "kind": "update", "node": NODE_ID, **fields}
    )


def test_an_allocation_that_has_a_node_holds_it_until_it_is_read() -> None:
    row = after(KNOWN, an_allocation())

    assert row == replace(KNOWN, doubts=(ALLOCATION_CHANGED,), is_doubted=True)
    assert not is_offered(row)
    assert after(KNOWN, an_allocation(), rules=WITHOUT_REST) is KNOWN


def test_an_allocation_that_is_deleted_has_its_node_read() -> None:
    assert after(KNOWN, an_allocation(kind="delete")) == replace(KNOWN, doubts=(ALLOCATION_CHANGED,))


def test_a_notification_that_cannot_be_read_holds_its_node_unless_it_is_old() -> None:
    broken = UnreadableNotification(reason="maintenance is 7", node=NODE_ID, at_us=T0)

    row = after(KNOWN, broken)

    assert row == replace(KNOWN, doubts=(UNREADABLE,), is_doubted=True)
    assert after(KNOWN, replace(broken, at_us=KNOWN.heard_at_us)) is KNOWN
    assert after(KNOWN, broken, rules=WITHOUT_REST) is KNOWN


def test_a_deleted_node_is_never_offered() -> None:
    row = after(KNOWN, a_word(T0, kind="delete", is_deleted=True))

    assert row.is_deleted
    assert row.node == a_node()
    assert not is_offered(row)


def test_a_node_that_is_made_again_under_its_id_is_a_new_node() -> None:
    deleted = after(replace(KNOWN, node=a_node(shard="s1")), a_word(T0, kind="delete", is_deleted=True))

    row = after(deleted, a_word(T0 + 1, kind="create", provision_state="enroll"))

    assert not row.is_deleted
    assert row.node == a_node(provision_state="enroll")
    assert row.doubts == (FIRST_NOTIFICATION,)


def test_another_word_after_the_deletion_is_doubted_with_rest_and_believed_without() -> None:
    deleted = after(KNOWN, a_word(T0, kind="delete", is_deleted=True))
    late = a_word(T0 + SKEW_US, CONDUCTOR)

    row = after(deleted, late)

    assert row.is_deleted
    assert row.doubts == (DELETED_SPEAKS,)
    assert not is_offered(row)
    assert is_offered(after(deleted, late, rules=WITHOUT_REST))


def test_doubts_have_a_limit_and_the_node_is_held_beyond_it() -> None:
    row = KNOWN
    for number in range(DOUBTS_MAX + 5):
        row = after(row, NodeDoubted(id=NODE_ID, doubt=str(number)))

    assert len(row.doubts) == DOUBTS_MAX
    assert not row.is_doubted
    assert after(row, an_allocation()).is_doubted


def test_a_timestamp_of_next_year_does_not_outdo_all_words_until_then() -> None:
    rules = replace(WITHOUT_REST, now_us=T0)
    row = after(KNOWN, a_word(T0 + 365 * 86_400 * SECOND), rules=rules)

    assert row.heard_at_us == T0
    row = after(row, a_word(T0 + 1, maintenance=True), rules=rules)
    assert not is_offered(row)


def test_without_rest_a_clock_that_is_a_little_ahead_keeps_its_order() -> None:
    rules = replace(WITHOUT_REST, now_us=T0)
    row = after(
        KNOWN, a_word(T0 + AHEAD_US_MAX, maintenance=True), a_word(T0 + AHEAD_US_MAX - 1), rules=rules
    )

    assert row.heard_at_us == T0 + AHEAD_US_MAX
    assert not is_offered(row)


def test_a_word_that_is_ahead_by_more_than_the_skew_has_no_order_and_the_node_is_read_again() -> None:
    """One of two publishers has a wrong clock, or both are right and the daemon's is behind."""
    rules = replace(WITH_REST, now_us=T0)
    ahead = T0 + 10 * SECOND

    freed = after(replace(KNOWN, node=a_node(maintenance=True)), a_word(ahead), rules=rules)
    taken = after(KNOWN, a_word(ahead, maintenance=True), rules=rules)
    both = after(KNOWN, a_word(ahead), rules=rules)

    assert freed.doubts == taken.doubts == both.doubts == (AHEAD,)
    assert [is_offered(each) for each in (freed, taken, both)] == [False, False, True]
    assert freed.heard_at_us == T0
    # Another publisher says the truth meanwhile.
    row = after(
        both,
        a_word(T0 + 3 * SECOND, CONDUCTOR, maintenance=True),
        rules=replace(rules, now_us=T0 + 3 * SECOND),
    )
    assert not is_offered(row)
    assert after(KNOWN, a_word(T0 + SKEW_US), rules=rules).doubts == ()


def test_a_node_that_is_missing_since_a_time_to_come_is_missing_since_now() -> None:
    since = replace(KNOWN, missing_since_us=T0 + 3600 * SECOND)

    row = held_missing(since, since.version, T0)

    assert row == replace(since, missing_since_us=T0, read_at_us=T0)
    assert row is not None
    assert held_missing(row, row.version, T0 + SECOND) is row


def test_an_answer_settles_every_doubt() -> None:
    held = after(KNOWN, an_allocation(), a_word(T0, name="n"))

    row = read_again(held, a_node(shard="s2"), held.version, T0 + SECOND)

    assert row == replace(held, node=a_node(shard="s2"), doubts=(), is_doubted=False, read_at_us=T0 + SECOND)
    assert row is not None
    assert is_offered(row)


def test_an_answer_is_not_believed_if_the_row_was_written_since_the_request() -> None:
    assert read_again(replace(KNOWN, version=8), a_node(), 7, T0) is None
    assert read_as_gone(replace(KNOWN, version=8), 7, T0) is None


def test_an_answer_that_says_nothing_new_gives_the_very_same_row() -> None:
    assert read_again(KNOWN, a_node(), KNOWN.version, T0) is KNOWN


def test_the_first_answer_marks_the_row_as_read_though_it_says_nothing_new() -> None:
    heard = replace(KNOWN, read_at_us=0)

    assert read_again(heard, a_node(), heard.version, T0) == replace(heard, read_at_us=T0)


def test_a_node_that_rest_does_not_list_is_held_and_gone_only_when_its_own_address_says_so() -> None:
    row = not_listed(KNOWN)

    assert row == replace(KNOWN, doubts=(NOT_LISTED,), is_doubted=True)
    assert not row.is_deleted
    gone = read_as_gone(row, row.version, T0)
    assert gone is not None
    assert gone.is_deleted
    assert (gone.node, gone.doubts, gone.is_doubted) == (KNOWN.node, (), False)
    assert not is_offered(gone)
    assert read_as_gone(gone, gone.version, T0) is gone
    assert not_listed(gone) is gone
    assert is_offered(read_again(row, a_node(), row.version, T0) or UNKNOWN)


def test_a_node_that_rest_still_has_is_no_longer_deleted() -> None:
    deleted = after(KNOWN, a_word(T0, kind="delete", is_deleted=True))

    row = read_again(deleted, a_node(), deleted.version, T0 + SECOND)

    assert row is not None
    assert not row.is_deleted


def test_a_word_that_was_under_way_while_rest_was_asked_does_not_free_the_node() -> None:
    read_in_maintenance = read_again(KNOWN, a_node(maintenance=True), KNOWN.version, T0)
    assert read_in_maintenance is not None

    late = after(read_in_maintenance, a_word(T0 - SECOND))
    skewed = after(read_in_maintenance, a_word(T0 + SKEW_US))
    newer = after(read_in_maintenance, a_word(T0 + SKEW_US + 1))

    assert late.doubts == skewed.doubts == (OLDER_THAN_READ,)
    assert not is_offered(late)
    assert not is_offered(skewed)
    assert is_offered(newer)


def test_a_word_from_before_the_node_was_read_changes_nothing_but_has_the_node_read() -> None:
    read = replace(KNOWN, node=a_node(conductor_group="rack2"), read_at_us=T0)
    before = a_word(T0 - SECOND, conductor_group="rack1")

    late = after(read, before)

    assert (late.node, late.doubts, is_offered(late)) == (read.node, (OLDER_THAN_READ,), True)
    assert not is_offered(after(read, a_word(T0 - SECOND, maintenance=True)))
    # What says the same is no reason to read.
    assert after(read, a_word(T0 - SECOND, conductor_group="rack2")).doubts == ()
    assert after(read, before, rules=WITHOUT_REST).node == a_node(conductor_group="rack1")


def test_a_word_from_before_the_known_state_comes_late_also_if_a_clock_makes_it_seem_newer() -> None:
    """Only an answer says that Ironic was restored from a backup."""
    deployed = a_node(provision_state="active", provision_updated_at=moment(T0))
    read = replace(KNOWN, node=deployed, read_at_us=T0)
    before = a_word(T0 + SECOND, provision_state="deploying", provision_updated_at=moment(T0 - 5 * SECOND))

    late = after_change(read, after(read, before), POLICY)

    assert (late.node, late.doubts) == (deployed, (OLDER_THAN_READ,))
    assert late.older_than is None
    restored = read_again(read, before.node, read.version, T0 + SECOND)
    assert restored is not None
    assert "restored from a backup" in after_change(read, restored, POLICY).trouble


def test_words_that_follow_each_other_after_an_answer_are_in_order() -> None:
    row = read_again(KNOWN, a_node(), KNOWN.version, T0)
    assert row is not None

    row = after(row, a_word(T0 + 1, maintenance=True), a_word(T0 + 2))

    assert is_offered(row)
    assert row.doubts == ()


def test_an_answer_shows_that_the_last_word_came_from_the_future() -> None:
    row = after(KNOWN, a_word(T0 + 365 * 86_400 * SECOND))

    settled = read_again(row, a_node(), row.version, T0)

    assert settled is not None
    assert (settled.heard_at_us, settled.heard_from) == (T0, "")
    assert not is_offered(after(settled, a_word(T0 + SECOND, maintenance=True)))
