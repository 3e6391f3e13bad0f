"""Which faults do hosts and their providers show: names that are there twice, and capacity that is there twice? Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from bus.auditing.views import Fault
from bus.message import ProviderId  # noqa: TC001 - like every other import
from bus.messages.hosts import HostState
from bus.messages.placement import ProviderState

CAPACITY = "capacity"
NAME = "name in two cells"


def name_clashes(hosts: Iterable[HostState]) -> list[Fault]:
    """The names that hosts of several cells have."""
    cells: dict[str, set[str]] = {}
    for host in hosts:
        cells.setdefault(host.name.lower(), set()).add(host.cell)
    return [
        Fault(
            NAME,
            None,
            f"hosts of cells {', '.join(sorted(there))} are called {name}",
            advice="each is used as before; give the name with its cell. If one of them is none of yours, its cell's user "
            "has sent a false report",
        )
        for name, there in sorted(cells.items())
        if len(there) > 1
    ]


def capacity_faults(providers: Iterable[ProviderState]) -> Iterator[Fault]:
    """The classes of which a host's tree has more than its reporter reports: the same capacity may be there twice.

    A tree may have less, and classes that its reporter never reports: these were written by name. A tree of which nothing
    is reported is not judged.
    """
    trees: dict[ProviderId, list[ProviderState]] = {}
    for each in providers:
        trees.setdefault(each.root, []).append(each)
    for tree in trees.values():
        # Where nothing was written by name, each provider has what is reported.
        if any(each.reported is None or each.reported for each in tree):
            yield from _capacity_of(tree)


def _capacity_of(tree: Sequence[ProviderState]) -> Iterator[Fault]:
    there: Counter[str] = Counter()
    reported: Counter[str] = Counter()
    for each in tree:
        there.update({name: stock.total for name, stock in each.inventories.items()})
        if each.reported is not None:
            words = {**each.inventories, **each.reported}
            reported.update({name: word.total for name, word in words.items() if word is not None})
    root = next((each for each in tree if each.parent is None), tree[0])
    for name, total in sorted(there.items()):
        if 0 < reported[name] < total:
            stands = ", ".join(
                f"{each.inventories[name].total} on {each.name}" for each in tree if name in each.inventories
            )
            yield Fault(
                CAPACITY,
                None,
                f"the tree of {root.name} has {total} of {name} ({stands}), and its reporter reports {reported[name]}",
                advice="what was written by name stays: remove what is too much, or give it back to the reporter by "
                "`moor provider set inventory PROVIDER --as-reported`",
                version=(name, total, reported[name]),
            )
