"""Names of traits and resource classes that are like one that nobody knows."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from bus.messages.administration import AskNames, NamesFound
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.planning import AskCapabilities, CapabilitiesFound
from moor.asking import Asks, items_of
from moor.client.errors import Rejected

CUSTOM = "CUSTOM_"
NAMES_MAX = 3
PAGE = 500
# The keys of extra specs that ask for a trait or an amount, of the instance or of a group.
_ASKED = re.compile(r"(?:trait|resources)[^:]*:(CUSTOM_[A-Z0-9_]+)")


def standard_names() -> list[str]:
    # Only an error needs them, and they take a tenth of a second to load.
    import os_resource_classes  # noqa: PLC0415
    import os_traits  # noqa: PLC0415

    return [*os_resource_classes.STANDARDS, *os_traits.get_traits()]


def near(name: str, known: Iterable[str]) -> str:
    """What an error says beside an unknown name: `; near it are VCPU, PCPU`. Empty if no known name is like it."""
    # That two names are custom does not make them alike.
    by_own: dict[str, list[str]] = {}
    for each in sorted({*known} - {name}):
        by_own.setdefault(each.removeprefix(CUSTOM), []).append(each)
    own = get_close_matches(name.upper().removeprefix(CUSTOM), by_own, n=NAMES_MAX)
    close = [each for found in own for each in by_own[found]][:NAMES_MAX]
    return f"; near it are {', '.join(close)}" if close else ""


def near_texts(name: str, known: Iterable[str]) -> str:
    """The same for names that people choose."""
    close = get_close_matches(name, sorted({*known}), n=NAMES_MAX)
    return f"; near it are {', '.join(close)}" if close else ""


def hint_for(refused: BuildRejected | Rejected) -> str:
    """The standard names near the one that a scheduler refuses."""
    return near(refused.value, standard_names()) if "neither a standard one" in refused.reason else ""


async def unknown_with_near(asking: Asks, names: Iterable[str]) -> str:
    """These names, which placement does not know, each with those near it: standard ones, and custom ones."""
    known = standard_names()
    for kind in ("classes", "traits"):
        question = AskNames(of=kind, limit=PAGE)
        known += await items_of(asking, question, NamesFound, lambda page: page.names)
    return ", ".join(f"{name}{near(name, known)}" for name in names)


async def hints_for(asking: Asks, build: BuildInstance) -> list[str]:
    """For each custom trait and class that the request asks for and no host has: the names near it that some host has."""
    specs = [each.extra_specs for each in (build.flavor, *build.alternatives) if each is not None]
    asked = {
        found[1]
        for spec in specs
        for key, value in spec.items()
        if value != "forbidden" and (found := _ASKED.fullmatch(key))
    }
    if not asked:
        return []
    question = AskCapabilities(limit=PAGE)
    known = await items_of(asking, question, CapabilitiesFound, lambda page: page.capabilities)
    names = {each.name for each in known}
    return [f"no host has {name}{near(name, names)}" for name in sorted(asked - names)]
