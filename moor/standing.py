"""What stands on which broker: the API level's, and those of cells that have one of their own."""

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from bus.definitions import rights_by_user
from bus.permissions import Rights
from bus.places import Places
from bus.topology import Objects, Site, objects_of

API = "api"
IRONIC = "ironic"


class Standing(Struct, frozen=True):
    """One broker, what of the topology is on it, and for which cells."""

    url: str
    sites: tuple[Site, ...]
    cells: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What stands there: the API level, cells, or both; or nothing but what hears Ironic."""
        if self.sites == (Site.IRONIC,):
            return (IRONIC,)
        return (*((API,) if Site.API in self.sites else ()), *self.cells)

    @property
    def virtual_host(self) -> str:
        return unquote(urlsplit(self.url).path.removeprefix("/")) or "/"

    def objects(self, *, create_foreign: bool = False) -> Objects:
        return objects_of(self.cells, self.sites, create_foreign=create_foreign)

    def rights(self) -> dict[str, Rights]:
        return rights_by_user(self.objects().exchanges, self.cells, self.sites)


def standings_of(places: Places, cells: Iterable[str]) -> tuple[Standing, ...]:
    """The API level's broker first; it serves the cells, too, unless all of them have their own. Ironic's is the last, if it
    has one of its own.
    """
    by_url: dict[str, list[str]] = {places.bus_url: []}
    for cell in cells:
        by_url.setdefault(places.bus_of(cell), []).append(cell)
    serve_cells = [url for url, here in by_url.items() if here] or [places.bus_url]
    by_url.setdefault(places.ironic_bus, [])
    return tuple(
        Standing(
            url,
            tuple(
                site
                for site, is_there in (
                    (Site.API, url == places.bus_url),
                    (Site.CELL, url in serve_cells),
                    (Site.IRONIC, url == places.ironic_bus),
                )
                if is_there
            ),
            tuple(here),
        )
        for url, here in by_url.items()
    )
