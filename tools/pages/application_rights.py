"""The table of the bus's reference that says what an application may send and receive, from the topology."""

from collections.abc import Iterator

from bus.queues import Grant
from bus.topology import OF_ADMINS, Application, of_projects
from tools.pages.markdown import table

PROJECT, NAME = "PROJECT", "NAME"
TEXT = (
    "An application has the user `moor-app-NAME`. `PROJECT` is each of its projects; an admin may name any project, or `-` for all. "
    "Every application may send on its own exchange `moor.api.NAME` what it may send on `moor.api`."
)


def section() -> str:
    return f"## Rights of applications\n\n{TEXT}\n\n{table(('it may', 'on', 'keys'), _rows())}"


def _rows() -> Iterator[tuple[str, str, str]]:
    yield from _granted("send", of_projects(PROJECT))
    yield from _granted("as an admin, also send", OF_ADMINS)
    yield from _granted("receive", Application(NAME.lower(), projects=(PROJECT.lower(),)).role.listens)
    yield from _granted("as an admin, receive", Application(NAME.lower(), admin=True).role.listens)


def _granted(may: str, grants: tuple[Grant, ...]) -> Iterator[tuple[str, str, str]]:
    """One row for each exchange."""
    for exchange in dict.fromkeys(grant.exchange for grant in grants):
        keys = [each for grant in grants if grant.exchange == exchange for each in grant.patterns]
        shown = (f"`{each.replace(PROJECT.lower(), PROJECT)}`" for each in keys)
        yield may, f"`{exchange}`", ", ".join(shown)
