"""Every message in every place of a move is decided, and the drawing of the moves is what the code does."""

import pytest

from cell_conductor.core import moving
from tools.pages.moves_page import heard, place_of

STEPS = ("claiming", "stopping", "freeing", "receiving", "leaving", "returning", "restarting")


# It walks all of a move's places, which takes 20 s of a processor that it has alone.
@pytest.mark.timeout(600)
def test_every_place_of_a_move_is_reached_and_left() -> None:
    found = heard()

    places = {
        "active",
        "broken",
        "moved",
        "stopped",
        "shelved",
        "offloaded",
        "unshelving: swapping",
        "unshelving: building",
        "broken: restarting",
        "broken: returning",
        "rebuilding",
        "broken: host is asked",
        *(f"moving: {step}" for step in STEPS),
    }
    assert {place_of(each.before) for each in found} == places
    for place in places:
        after = {place_of(each.after) for each in found if place_of(each.before) == place}
        assert after - {place, "deleting"}, f"{place} leads nowhere but to its delete"


def test_the_docstring_names_the_next_steps_that_there_are() -> None:
    """Each line of its table: the step, and what comes then."""
    assert moving.__doc__ is not None
    lines = [line for line in moving.__doc__.splitlines() if line.strip().split(" ")[0] in STEPS]
    drawn = {line.split()[0]: {step for step in STEPS if step in line.split("  ")[-1]} for line in lines}

    tried: dict[str, set[str]] = {step: set() for step in STEPS}
    for each in found_steps():
        tried[each[0]].add(each[1])
    assert drawn.keys() == tried.keys()
    # A line of which no step is read would agree with everything.
    leads_on = {step for step in STEPS if tried[step] - {step}}
    assert {step for step in STEPS if drawn[step] - {step}} == leads_on
    for step, after in drawn.items():
        assert after <= tried[step] | {step}, f"{step} does not lead to {after - tried[step]}"


def found_steps() -> set[tuple[str, str]]:
    steps = {(place_of(each.before), place_of(each.after)) for each in heard()}
    return {
        (before.removeprefix("moving: "), after.removeprefix("moving: "))
        for before, after in steps
        if before.startswith("moving: ") and after.startswith("moving: ")
    }


def test_a_move_is_over_once_and_each_end_is_seen() -> None:
    ends = {
        each.after.move.outcome
        for each in heard()
        if each.after.moving is None and each.after.move is not None and each.after.state == "active"
    }
    assert ends == {"confirmed", "reverted", "aborted", "failed", "done"}
