"""Words about a node in any order, doubled and late."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ironic_sync.core.notifications import (
    NodeNotified,
)
from ironic_sync.core.ordering import (
    OrderingRules,
    read_again,
)
from tests.properties.bounds import BOUNDED, THOROUGH
from tests.unit.ironic.captured import (
    API,
    CONDUCTOR,
    INSTANCE,
    a_node,
    a_word,
)
from tests.unit.ironic.node_rows import KNOWN, SKEW_US, T0, WITH_REST, WITHOUT_REST, after, is_offered

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
