"""Which word about a node counts, in any order, doubled and late; when a node is read again, and when it is believed to be gone."""

from collections.abc import Callable, Sequence
from datetime import datetime
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
    Notification,
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
    NOTIFICATION_UNREADABLE,
    OLDER_THAN_READ,
    TRAITS_CHANGED,
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
from kit.clock import moment
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


# What is heard of a node, or what its owner then makes of an answer of Ironic.
Happening = Notification | Callable[[NodeRow], NodeRow | None]
# What the row says after each, by its fields and by whether its node is offered; None: it is the very same row.
Says = NodeRow | dict[str, object] | None
Case = tuple[NodeRow, OrderingRules, Sequence[tuple[Happening, Says]]]


def answer(at_us: int = T0, **fields: Any) -> Happening:
    return lambda row: read_again(row, a_node(**fields), row.version, at_us)


def gone(row: NodeRow) -> NodeRow | None:
    return read_as_gone(row, row.version, T0)


def missed(row: NodeRow) -> NodeRow | None:
    return held_missing(row, row.version, T0)


def an_allocation(**fields: Any) -> AllocationNotified:
    return AllocationNotified(
        **{"allocation": ConsumerId(INSTANCE), "kind": "update", "node": NODE_ID, **fields}
    )


FAILED = NodeDoubted(id=NODE_ID, doubt="delete ended in an error")
BROKEN = UnreadableNotification(reason="maintenance is 7", node=NODE_ID, at_us=T0)
DELETION = a_word(T0, kind="delete", is_deleted=True)
WORN = replace(KNOWN, doubts=tuple(map(str, range(DOUBTS_MAX))))
IN_DOUBT = replace(KNOWN, doubts=(ALLOCATION_CHANGED,), is_doubted=True)
READ = replace(KNOWN, read_at_us=T0)
IN_RACK_2 = replace(READ, node=a_node(conductor_group="rack2"))
FROM_RACK_1 = a_word(T0 - SECOND, conductor_group="rack1")
NEXT_YEAR = T0 + 365 * 86_400 * SECOND
BY_THE_CLOCK, AHEAD_OF_IT = replace(WITH_REST, now_us=T0), T0 + 10 * SECOND
MISSING_LATER = replace(KNOWN, missing_since_us=T0 + 3600 * SECOND)
MISSING_NOW = replace(MISSING_LATER, missing_since_us=T0, read_at_us=T0)

CASES: dict[str, Case] = {
    "the newest word wins and an older or equal one is dropped": (
        KNOWN,
        WITH_REST,
        [
            (
                a_word(T0, maintenance=True),
                {"node": a_node(maintenance=True), "heard_at_us": T0, "heard_from": API},
            ),
            (a_word(T0 - 1), None),
            (a_word(T0), None),
        ],
    ),
    "no word touches the version": (
        KNOWN,
        WITH_REST,
        [(a_word(T0, maintenance=True), {"version": 7}), (a_word(T0 + 1, CONDUCTOR), {"version": 7})],
    ),
    "the first word of an unknown node is believed and the node is read": (
        UNKNOWN,
        WITH_REST,
        [(a_word(T0), {"node": a_node(), "doubts": (FIRST_NOTIFICATION,), "is_doubted": False})],
    ),
    "the first word of an unknown node is believed where nothing can be read": (
        UNKNOWN,
        WITHOUT_REST,
        [(a_word(T0), {"node": a_node(), "doubts": ()})],
    ),
    "the shard that was read stays since no notification has it": (
        replace(KNOWN, node=a_node(shard="s1")),
        WITH_REST,
        [(a_word(T0, maintenance=True), {"node": a_node(maintenance=True, shard="s1")})],
    ),
    "two publishers farther apart than the skew are in order": (
        KNOWN,
        WITH_REST,
        [
            (a_word(T0, maintenance=True), {"is_offered": False}),
            (a_word(T0 + SKEW_US, CONDUCTOR), {"is_offered": True, "doubts": ()}),
            (a_word(T0, maintenance=True), None),
        ],
    ),
    "two publishers that say the same are not doubted": (
        KNOWN,
        WITH_REST,
        [(a_word(T0), {}), (a_word(T0 + 1, CONDUCTOR), {"doubts": (), "heard_from": CONDUCTOR})],
    ),
    "words of one publisher are in order however near": (
        KNOWN,
        WITH_REST,
        [(a_word(T0, maintenance=True), {}), (a_word(T0 + 1), {"is_offered": True, "doubts": ()})],
    ),
    "a node that is held stays held until it is read": (
        KNOWN,
        WITH_REST,
        [
            (a_word(T0, maintenance=True), {}),
            (a_word(T0 + 1, CONDUCTOR), {"is_offered": False}),
            (a_word(T0 + 60 * SECOND, CONDUCTOR, name="later"), {"is_offered": False}),
            (FAILED, {"is_offered": False}),
            (answer(T0 + 61 * SECOND), {"is_offered": True}),
        ],
    ),
    "changed traits are believed and read again without holding the node": (
        KNOWN,
        WITH_REST,
        [
            (
                a_word(T0, kind="update", traits=("CUSTOM_A",)),
                {"node": a_node(traits=("CUSTOM_A",)), "doubts": (TRAITS_CHANGED,), "is_offered": True},
            )
        ],
    ),
    "an update that changes no traits is no reason to read": (
        KNOWN,
        WITH_REST,
        [(a_word(T0, kind="update", name="n"), {"doubts": ()})],
    ),
    "an error of a state change is believed and read again": (
        KNOWN,
        WITH_REST,
        [
            (
                a_word(T0, doubt="provision_set ended in an error", provision_state="error"),
                {"node": a_node(provision_state="error"), "doubts": ("provision_set ended in an error",)},
            )
        ],
    ),
    "an error of a request changes nothing but has the node read": (
        KNOWN,
        WITH_REST,
        [(FAILED, replace(KNOWN, doubts=("delete ended in an error",))), (FAILED, None)],
    ),
    "an allocation that has a node holds it until it is read": (
        KNOWN,
        WITH_REST,
        [(an_allocation(), IN_DOUBT), (answer(T0), {"is_offered": True, "doubts": (), "is_doubted": False})],
    ),
    "an allocation that is deleted has its node read": (
        KNOWN,
        WITH_REST,
        [(an_allocation(kind="delete"), replace(KNOWN, doubts=(ALLOCATION_CHANGED,)))],
    ),
    "a notification that cannot be read holds its node": (
        KNOWN,
        WITH_REST,
        [(BROKEN, replace(KNOWN, doubts=(NOTIFICATION_UNREADABLE,), is_doubted=True))],
    ),
    "a notification that cannot be read and is old changes nothing": (
        KNOWN,
        WITH_REST,
        [(replace(BROKEN, at_us=KNOWN.heard_at_us), None)],
    ),
    "what only has a node read changes nothing where nothing can be read": (
        KNOWN,
        WITHOUT_REST,
        [(FAILED, None), (an_allocation(), None), (BROKEN, None)],
    ),
    "a deleted node is never offered": (
        KNOWN,
        WITH_REST,
        [(DELETION, {"is_deleted": True, "node": a_node(), "is_offered": False})],
    ),
    "a node that is made again under its id is a new node": (
        replace(KNOWN, node=a_node(shard="s1")),
        WITH_REST,
        [
            (DELETION, {"is_deleted": True}),
            (
                a_word(T0 + 1, kind="create", provision_state="enroll"),
                {
                    "is_deleted": False,
                    "node": a_node(provision_state="enroll"),
                    "doubts": (FIRST_NOTIFICATION,),
                },
            ),
        ],
    ),
    "another word after the deletion is doubted with REST": (
        KNOWN,
        WITH_REST,
        [
            (DELETION, {}),
            (
                a_word(T0 + SKEW_US, CONDUCTOR),
                {"is_deleted": True, "doubts": (DELETED_SPEAKS,), "is_offered": False},
            ),
        ],
    ),
    "another word after the deletion is believed without REST": (
        KNOWN,
        WITHOUT_REST,
        [(DELETION, {}), (a_word(T0 + SKEW_US, CONDUCTOR), {"is_offered": True})],
    ),
    "doubts have a limit and the node is held beyond it": (
        WORN,
        WITH_REST,
        [
            (FAILED, {"doubts": WORN.doubts, "is_doubted": False}),
            (an_allocation(), {"doubts": WORN.doubts, "is_doubted": True}),
        ],
    ),
    "a timestamp of next year does not outdo all words until then": (
        KNOWN,
        replace(WITHOUT_REST, now_us=T0),
        [
            (a_word(NEXT_YEAR), {"heard_at_us": T0}),
            (a_word(T0 + 1, maintenance=True), {"is_offered": False}),
        ],
    ),
    "without REST a clock that is a little ahead keeps its order": (
        KNOWN,
        replace(WITHOUT_REST, now_us=T0),
        [
            (a_word(T0 + AHEAD_US_MAX, maintenance=True), {"heard_at_us": T0 + AHEAD_US_MAX}),
            (a_word(T0 + AHEAD_US_MAX - 1), {"heard_at_us": T0 + AHEAD_US_MAX, "is_offered": False}),
        ],
    ),
    # One of two publishers has a wrong clock, or both are right and the daemon's is behind.
    "a word that is ahead by more than the skew has no order and frees no node": (
        replace(KNOWN, node=a_node(maintenance=True)),
        BY_THE_CLOCK,
        [(a_word(AHEAD_OF_IT), {"doubts": (AHEAD,), "is_offered": False, "heard_at_us": T0})],
    ),
    "a word that is ahead by more than the skew and says unavailable is believed": (
        KNOWN,
        BY_THE_CLOCK,
        [(a_word(AHEAD_OF_IT, maintenance=True), {"doubts": (AHEAD,), "is_offered": False})],
    ),
    "a word that is ahead by more than the skew does not hide what another publisher says meanwhile": (
        KNOWN,
        BY_THE_CLOCK,
        [
            (a_word(AHEAD_OF_IT), {"doubts": (AHEAD,), "is_offered": True}),
            (a_word(T0 + SKEW_US, CONDUCTOR, maintenance=True), {"is_offered": False}),
        ],
    ),
    "a word that is ahead by no more than the skew is in order": (
        KNOWN,
        BY_THE_CLOCK,
        [(a_word(T0 + SKEW_US), {"doubts": ()})],
    ),
    "a node that is missing since a time to come is missing since now": (
        MISSING_LATER,
        WITH_REST,
        [(missed, MISSING_NOW), (lambda row: held_missing(row, row.version, T0 + SECOND), None)],
    ),
    "an answer settles every doubt": (
        IN_DOUBT,
        WITH_REST,
        [
            (
                answer(T0 + SECOND, shard="s2"),
                replace(KNOWN, node=a_node(shard="s2"), read_at_us=T0 + SECOND),
            )
        ],
    ),
    "an answer that says nothing new gives the very same row": (KNOWN, WITH_REST, [(answer(), None)]),
    "the first answer marks the row as read though it says nothing new": (
        replace(KNOWN, read_at_us=0),
        WITH_REST,
        [(answer(), READ)],
    ),
    "a node that REST does not list is held and gone only when its own address says so": (
        KNOWN,
        WITH_REST,
        [
            (not_listed, replace(KNOWN, doubts=(NOT_LISTED,), is_doubted=True)),
            (
                gone,
                {
                    "is_deleted": True,
                    "node": KNOWN.node,
                    "doubts": (),
                    "is_doubted": False,
                    "is_offered": False,
                },
            ),
            (gone, None),
            (not_listed, None),
        ],
    ),
    "a node that REST does not list and then has is offered": (
        KNOWN,
        WITH_REST,
        [(not_listed, {"is_offered": False}), (answer(), {"is_offered": True})],
    ),
    "a node that REST still has is no longer deleted": (
        KNOWN,
        WITH_REST,
        [(DELETION, {"is_deleted": True}), (answer(T0 + SECOND), {"is_deleted": False})],
    ),
    **{
        f"a word that was under way while REST was asked does not free the node: {how}": (
            replace(READ, node=a_node(maintenance=True)),
            WITH_REST,
            [(a_word(T0 + at_us), {"doubts": (OLDER_THAN_READ,), "is_offered": False})],
        )
        for how, at_us in (("late", -SECOND), ("within the skew", SKEW_US))
    },
    "a word that is newer than the answer by more than the skew frees the node": (
        replace(READ, node=a_node(maintenance=True)),
        WITH_REST,
        [(a_word(T0 + SKEW_US + 1), {"is_offered": True})],
    ),
    "a word from before the node was read changes nothing but has the node read": (
        IN_RACK_2,
        WITH_REST,
        [(FROM_RACK_1, {"node": IN_RACK_2.node, "doubts": (OLDER_THAN_READ,), "is_offered": True})],
    ),
    "a word from before the node was read that says unavailable holds it": (
        IN_RACK_2,
        WITH_REST,
        [(a_word(T0 - SECOND, maintenance=True), {"is_offered": False})],
    ),
    "a word from before the node was read that says the same is no reason to read": (
        IN_RACK_2,
        WITH_REST,
        [(a_word(T0 - SECOND, conductor_group="rack2"), {"doubts": ()})],
    ),
    "a word from before the node was read is believed without REST": (
        IN_RACK_2,
        WITHOUT_REST,
        [(FROM_RACK_1, {"node": a_node(conductor_group="rack1")})],
    ),
    "words that follow each other after an answer are in order": (
        READ,
        WITH_REST,
        [(a_word(T0 + 1, maintenance=True), {}), (a_word(T0 + 2), {"is_offered": True, "doubts": ()})],
    ),
    "an answer shows that the last word came from the future": (
        KNOWN,
        WITH_REST,
        [
            (a_word(NEXT_YEAR), {}),
            (answer(), {"heard_at_us": T0, "heard_from": ""}),
            (a_word(T0 + SECOND, maintenance=True), {"is_offered": False}),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_row_of_a_node_says_after_each_word_and_each_answer(case: str) -> None:
    row, rules, happenings = CASES[case]
    for happening, says in happenings:
        now = happening(row) if callable(happening) else after(row, happening, rules=rules)
        assert now is not None
        if isinstance(says, dict):
            facts = {"is_offered": is_offered(now), **structs.asdict(now)}
            assert {name: facts[name] for name in says} == says
        else:
            assert now == (says or row)
            assert says or now is row
        row = now


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


def test_an_answer_is_not_believed_if_the_row_was_written_since_the_request() -> None:
    for as_answered in (read_as_gone, held_missing):
        assert as_answered(KNOWN, KNOWN.version - 1, T0) is None
    assert read_again(KNOWN, a_node(), KNOWN.version - 1, T0) is None


@pytest.mark.parametrize("at", [moment(T0 - 5 * SECOND), None], ids=["an earlier time", "no time"])
def test_a_word_from_before_the_known_state_comes_late_also_if_a_clock_makes_it_seem_newer(
    at: datetime | None,
) -> None:
    """Only an answer says that Ironic was restored from a backup."""
    deployed = a_node(provision_state="active", provision_updated_at=moment(T0))
    read = replace(KNOWN, node=deployed, read_at_us=T0)
    before = a_word(T0 + SECOND, provision_state="deploying", provision_updated_at=at)

    late = after_change(read, after(read, before), POLICY)

    assert (late.node, late.doubts, late.older_than) == (deployed, (OLDER_THAN_READ,), None)
    # From a clock that is wrong by a year it does not outdo all words until then.
    heard = after(read, replace(before, at_us=NEXT_YEAR), rules=BY_THE_CLOCK)
    assert heard.heard_at_us <= T0 + AHEAD_US_MAX
    restored = read_again(read, before.node, read.version, T0 + SECOND)
    assert restored is not None
    assert "restored from a backup" in after_change(read, restored, POLICY).trouble


def test_a_node_is_found_off_by_ironics_correction_alone_and_until_it_is_on() -> None:
    off = a_node(power_state="power off")
    by_order = a_word(T0, kind="power_set", power_state="power off")
    found = a_word(T0 + SECOND, kind="power_state_corrected", power_state="power off")

    assert not after(KNOWN, by_order).is_found_off
    row = after(KNOWN, by_order, found)
    assert row.is_found_off
    read = read_again(row, off, row.version, T0 + 2 * SECOND)
    assert read is not None
    assert read.is_found_off
    for on in (
        read_again(row, a_node(power_state="power on"), row.version, T0 + 2 * SECOND),
        after(row, a_word(T0 + 3 * SECOND, kind="power_set", power_state="power on")),
    ):
        assert on is not None
        assert not on.is_found_off
    # It was read before the word of it came, or was switched on since.
    known = replace(KNOWN, node=off, read_at_us=T0 + 2 * SECOND)
    assert after(known, found).is_found_off
    assert not after(replace(known, node=a_node(power_state="power on")), found).is_found_off


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
@given(
    st.tuples(words(), st.just(WITHOUT_REST)) | st.tuples(words(deletions=False), st.just(WITH_REST)),
    st.randoms(use_true_random=False),
)
def test_the_order_of_delivery_of_one_publishers_words_does_not_matter(
    of_one: tuple[list[NodeNotified], OrderingRules], chance: Any
) -> None:
    said, rules = of_one
    shuffled = chance.sample(said, len(said))

    assert after(KNOWN, *shuffled, rules=rules) == after(KNOWN, *said, rules=rules)


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
