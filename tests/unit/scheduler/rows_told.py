"""Rows of instances as tables: each step is what becomes of a row, beside what it says then."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from bus.messages.build import BuildRejected
from scheduler_worker.core.instances.history import changes_between, details_of
from scheduler_worker.core.instances.rows import InstanceRow, messages_of

Happening = Callable[[InstanceRow], InstanceRow | BuildRejected | None]
# Facts of the row by their paths; a text: why it is refused; None: nothing changes.
Says = Mapping[str, object] | str | None
Case = tuple[InstanceRow, Sequence[tuple[Happening, Says]]]


def check(case: Case) -> None:
    row, steps = case
    for happening, says in steps:
        now = happening(row)
        if says is None:
            assert now is None or now is row
        elif isinstance(says, str):
            assert isinstance(now, BuildRejected)
            assert f"{now.field} {now.value}: {now.reason}" == says, now
        else:
            assert isinstance(now, InstanceRow), now
            told = {path: _fact(row, now, path) for path in says}
            assert told == says, told
            row = now


def _fact(before: InstanceRow, now: InstanceRow, path: str) -> object:
    """By its path; or what is said of it, or what its history gets."""
    if path == "messages":
        return [type(each) for each in messages_of(now)]
    if path == "changes":
        return [(each.what, each.number, each.outcome) for each in changes_between(before, now, "a user")]
    if path == "numbers":
        return [getattr(each, "sequence", None) for each in messages_of(now)]
    if path == "may_be_lost":
        return now.may_lose(is_new=False)
    if path.startswith("details."):
        return attrgetter(path.removeprefix("details."))(details_of(now))
    return attrgetter(path)(now)
