"""The table of the bus's reference that says who may name what in which message is whole, and every line of it is of use."""

from bus.message import Kind, type_of
from bus.messages import ALL
from tests.unit.examples import EXAMPLES
from tools.pages.authority_table import RULES, compared, named, rule_of, senders
from tools.pages.identity_fields import leaves_of


def test_every_field_that_names_something_is_compared_by_a_rule() -> None:
    without = [(type_of(kind), path) for kind, paths in named() for path in paths if not compared(kind, path)]

    assert without == []


def test_every_rule_is_the_first_one_for_some_field() -> None:
    used = {rule_of(type_of(kind), path) for kind, paths in named() for path in paths}

    assert [rule for rule in RULES if rule not in used] == []


def test_a_message_is_sent_by_the_roles_that_its_type_names_and_by_no_other() -> None:
    """Also by rights to more than one key: they cover no message that does not name the role."""
    # What an application may say for its projects, an admin may say for all; and an operator what an admin may.
    also = {"application": ("admin", "operator"), "admin": ("operator",)}
    for kind in ALL:
        if kind.ROUTE.kind is not Kind.ANSWER:
            by = {*kind.ROUTE.by, *(more for role in kind.ROUTE.by for more in also.get(role, ()))}
            assert {*senders(kind)} == by, kind


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
