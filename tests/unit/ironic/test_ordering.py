"""Which word about a node counts, in any order, doubled and late; when a node is read again, and when it is believed to be gone."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from engine.inventories import ConsumerId
from ironic_sync.core.notifications import (
    AllocationNotified,
    NodeDoubted,
    NodeNotified,
    UnreadableNotification,
)
from ironic_sync.core.offers import MISSING, CellMap, offer_of
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
    Belief,
    OrderingRules,
    believed_missing,
    decide_missing,
    held_missing,
    not_listed,
    read_again,
    read_as_gone,
)
from ironic_sync.core.rows import Deployed, NodeRow
from ironic_sync.core.settling import NodePolicy, after_change
from kit.times import moment
from tests.properties.bounds import BOUNDED, THOROUGH
from tests.unit.ironic.captured import (
    API,
    CONDUCTOR,
    INSTANCE,
    NODE_ID,
    a_node,
    a_word,
)
from tests.unit.ironic.deploys import OURS
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
    # From a clock that is wrong by a year it does not outdo all words until then.
    ahead = replace(before, at_us=T0 + 365 * 86_400 * SECOND)
    heard = after(read, ahead, rules=replace(WITH_REST, now_us=T0))
    assert heard.heard_at_us <= T0 + AHEAD_US_MAX
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


FIELDS = st.fixed_dictionaries(
    {
        "provision_state": st.sampled_from(["available", "available", "cleaning", "active", None]),
        "maintenance": st.sampled_from([False, False, True]),
        "instance_uuid": st.sampled_from([None, None, INSTANCE]),
        "name": st.sampled_from(["a", "b"]),
    }
)


@st.composite
def words(
    draw: st.DrawFn, publishers: Sequence[str] = (API,), *, deletions: bool = True
) -> list[NodeNotified]:
    """Words of these publishers, each at another time, up to three skews apart."""
    times = draw(st.lists(st.integers(1, 3 * SKEW_US), min_size=1, max_size=7, unique=True))
    return [
        a_word(
            T0 + at,
            draw(st.sampled_from(publishers)),
            is_deleted=deletions and draw(st.integers(0, 6)) == 0,
            kind=draw(st.sampled_from(("provision_set", "create", "update"))),
            **draw(FIELDS),
        )
        for at in sorted(times)
    ]


@THOROUGH
@given(words(), st.randoms(use_true_random=False))
def test_the_order_of_delivery_of_one_publishers_words_does_not_matter_without_rest(
    said: list[NodeNotified], chance: Any
) -> None:
    shuffled = list(said)
    chance.shuffle(shuffled)

    assert after(KNOWN, *shuffled, rules=WITHOUT_REST) == after(KNOWN, *said, rules=WITHOUT_REST)


@THOROUGH
@given(words(deletions=False), st.randoms(use_true_random=False))
def test_the_order_of_delivery_of_one_publishers_words_does_not_matter_with_rest(
    said: list[NodeNotified], chance: Any
) -> None:
    shuffled = list(said)
    chance.shuffle(shuffled)

    assert after(KNOWN, *shuffled) == after(KNOWN, *said)


@THOROUGH
@given(words(), st.lists(st.integers(0, 6), max_size=10), st.sampled_from([WITH_REST, WITHOUT_REST]))
def test_duplicates_of_one_publishers_words_change_nothing(
    said: list[NodeNotified], again: list[int], rules: OrderingRules
) -> None:
    row = after(KNOWN, *said, rules=rules)

    for position in again:
        assert after(row, said[position % len(said)], rules=rules) is row


@THOROUGH
@given(words((API, CONDUCTOR)), st.lists(st.integers(0, 6), max_size=10))
def test_duplicates_of_any_words_never_free_a_node(said: list[NodeNotified], again: list[int]) -> None:
    row = after(KNOWN, *said)
    repeated = after(row, *[said[position % len(said)] for position in again])

    assert is_offered(row) or not is_offered(repeated)
    assert (repeated.node, repeated.is_deleted) == (row.node, row.is_deleted)


UNAVAILABLE = st.sampled_from(
    [
        {"maintenance": True},
        {"provision_state": "manageable"},
        {"instance_uuid": INSTANCE},
        {"retired": True},
        {"fault": "power failure"},
        {"power_state": "error"},
        {"is_deleted": True},
        {"provision_state": "a state of next year"},
    ]
)


@THOROUGH
@given(
    words((API, CONDUCTOR)),
    UNAVAILABLE,
    st.integers(0, 7),
    st.randoms(use_true_random=False),
    st.sampled_from([WITH_REST, WITHOUT_REST]),
)
def test_a_node_whose_newest_word_says_unavailable_is_never_offered(
    said: list[NodeNotified], fields: dict[str, Any], place: int, chance: Any, rules: OrderingRules
) -> None:
    newest = a_word(T0 + 4 * SKEW_US, said[0].publisher, **fields)
    chance.shuffle(said)
    row = after(KNOWN, *said[:place], newest, rules=rules)
    assert not is_offered(row)

    for late in (*said[place:], newest, *said):
        row = after(row, late, rules=rules)
        assert not is_offered(row)


@THOROUGH
@given(words((API, CONDUCTOR, "ironic-conductor.b")), UNAVAILABLE, st.integers(-SKEW_US + 1, SKEW_US - 1))
def test_a_word_that_says_unavailable_within_the_skew_of_another_publishers_holds_the_node_until_it_is_read(
    said: list[NodeNotified], fields: dict[str, Any], apart_us: int
) -> None:
    row = after(KNOWN, *said)
    other = a_word(row.heard_at_us + apart_us, "ironic-conductor.c", **fields)

    held = after(row, other)
    assert not is_offered(held)
    assert not is_offered(after(held, a_word(T0 + 100 * SKEW_US)))


@BOUNDED
@given(words((API, CONDUCTOR)), words((API, CONDUCTOR)))
def test_an_answer_counts_only_for_the_row_that_it_was_asked_for(
    before: list[NodeNotified], meanwhile: list[NodeNotified]
) -> None:
    asked = after(KNOWN, *before)
    row = asked
    for word in meanwhile:
        changed = after(row, word)
        row = row if changed is row else replace(changed, version=row.version + 1)

    answer = read_again(row, a_node(), asked.version, T0 + 10 * SKEW_US)

    assert (answer is None) == (row is not asked)


BELIEF = Belief(few=2, share=0.2, after_s=60)


def missing(
    *rows: NodeRow, known: int, lost_lately: int = 0, at_us: int = T0
) -> tuple[list[NodeRow], list[NodeRow]]:
    gone, held = decide_missing(rows, known=known, lost_lately=lost_lately, at_us=at_us, belief=BELIEF)
    return [*gone], [*held]


@pytest.mark.parametrize(
    ("count", "known", "lost_lately", "is_held"),
    [
        (2, 2, 0, False),
        (3, 3, 0, True),
        (3, 15, 0, False),
        (3, 14, 0, True),
        (20, 100, 0, False),
        (21, 100, 0, True),
        (1, 100, 20, True),
    ],
)
def test_more_than_a_few_and_more_than_a_share_are_held(
    count: int, known: int, lost_lately: int, *, is_held: bool
) -> None:
    rows = [KNOWN] * count

    decided = missing(*rows, known=known, lost_lately=lost_lately)

    assert decided == (([], rows) if is_held else (rows, []))


def test_what_stays_missing_is_believed_whatever_else_goes() -> None:
    long, short = (structs.replace(KNOWN, missing_since_us=T0 - seconds * SECOND) for seconds in (60, 59))

    assert missing(long, short, short, short, known=4) == ([long], [short] * 3)


def test_a_node_with_an_instance_is_never_believed_to_be_gone_until_somebody_says_so() -> None:
    used = structs.replace(KNOWN, deployed=Deployed(cell="c1", instance=OURS, attempt=1))
    ripe = structs.replace(used, missing_since_us=T0 - 60 * SECOND)

    assert missing(used, known=100) == ([], [used])
    assert missing(ripe, known=100) == ([], [ripe])

    held = read_as_gone(used, used.version, T0)
    assert held == held_missing(used, used.version, T0)
    assert held is not None
    assert (held.is_deleted, held.missing_since_us) == (False, T0)
    assert held.trouble == f"instance {OURS} lives here by the books, and Ironic has no such node any more"
    assert believed_missing(held).is_deleted
    # A notification that came late says it, too.
    late = after(held, a_word(T0 - SECOND, kind="delete", is_deleted=True))
    assert (late.is_deleted, late.missing_since_us) == (True, 0)
    assert read_as_gone(late, late.version, T0 + SECOND) is late


def test_a_missing_node_is_held_and_says_so_until_it_is_back_or_believed() -> None:
    held = held_missing(structs.replace(KNOWN, doubts=("a doubt",), is_doubted=True), KNOWN.version, T0)
    assert held is not None
    assert (held.missing_since_us, held.doubts, held.is_doubted) == (T0, (), False)
    offer = offer_of(held, frozenset())
    assert (offer.reserved, offer.reasons) == (True, (MISSING,))
    assert not held.is_deleted
    # It is not read again and again, and counts from when it was first missed.
    assert not held.needs_read
    assert held_missing(held, held.version, T0 + SECOND) is held

    back = read_again(held, a_node(), held.version, T0 + SECOND)
    assert back is not None
    assert not offer_of(back, frozenset()).reserved
    gone = read_as_gone(held, held.version, T0 + SECOND)
    assert gone is not None
    assert (gone.is_deleted, gone.missing_since_us) == (True, 0)
    assert believed_missing(held).is_deleted
    assert believed_missing(KNOWN) is KNOWN


def test_a_row_that_was_written_meanwhile_is_not_held_by_an_older_answer() -> None:
    assert held_missing(KNOWN, KNOWN.version - 1, T0) is None
