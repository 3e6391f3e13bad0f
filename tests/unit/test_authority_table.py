"""The table of the bus's reference that says who may name what in which message is whole, and every line of it is of use."""

from bus.message import type_of
from tests.identity_fields import leaves_of
from tests.pages.authority_table import RULES, named, rule_of, senders
from tests.unit.examples import EXAMPLES


def test_every_field_that_names_something_is_compared_by_a_rule() -> None:
    without = [
        (type_of(kind), path) for kind, paths in named() for path in paths if not rule_of(type_of(kind), path)
    ]

    assert without == []


def test_every_rule_is_the_first_one_for_some_field() -> None:
    used = {rule_of(type_of(kind), path) for kind, paths in named() for path in paths}

    assert [rule for rule in RULES if rule not in used] == []


def test_every_such_message_has_a_sender() -> None:
    assert [type_of(kind) for kind, _ in named() if not senders(kind)] == []


def test_nearly_all_of_these_fields_are_in_the_examples_that_the_stories_forge() -> None:
    """Those that are not can only be reached inside of a value that the example does not have."""
    forged = {(type_of(each), leaf.path) for each in EXAMPLES for leaf in leaves_of(each)}
    missing = {(type_of(kind), path) for kind, paths in named() for path in paths} - forged

    assert len(missing) < 20, missing
    assert {path.rpartition(".")[2] for _, path in missing} <= {
        "host",
        "name",
        "id",
        "source",
        "cell",
        "provider",
        "parent",
    }
