"""Which names do hosts of several cells have? Pure."""

from collections.abc import Iterable

from bus.auditing.views import Fault
from bus.messages.hosts import HostState

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
