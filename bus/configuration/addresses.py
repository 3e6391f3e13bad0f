"""The addresses of brokers and databases, and the cells, read from settings and checked.

Each key has one name: `bus_url` in a file is `MOOR_BUS_URL` in the environment. An error names the key, the value
(never a password) and where it was set.
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from bus.process import exiting_if_wrong, make_ready
from bus.topology import CELL0, CELL_NAME

Value = str | tuple[str, ...] | dict[str, str]


class BadSetting(ValueError):  # noqa: N818 - named for what it is
    """An invalid setting: its key, its value, where it was set, and what is allowed."""

    def __init__(self, key: str, value: object, where: str, why: str) -> None:
        shown = "***" if is_secret(key) else value
        super().__init__(f"{key} is {without_password(repr(shown))} ({where}): {why}")
        self.key = key


def is_secret(key: str) -> bool:
    """Whether the value of this setting must not be shown."""
    return key.endswith(("password", "secret"))


class Stated(Struct, frozen=True):
    """The value of one address setting, and where it was set: a flag, a variable, a file."""

    value: Value
    where: str


class Addresses(Struct, frozen=True, kw_only=True):
    """The addresses of the API level's broker and database, and of the cells that have their own. Empty means not set."""

    bus_url: str = ""
    db_url: str = ""
    # The database of placement's tables, if they have their own.
    placement_db_url: str = ""
    # The database of the daemons for bare-metal nodes, if they have their own.
    ironic_db_url: str = ""
    # The broker on which Ironic publishes its notifications, if it is another one.
    ironic_bus_url: str = ""
    # Ironic's REST API; empty if only notifications are used.
    ironic_url: str = ""
    # The cell of a bare-metal node: by its shard, else by its conductor group, else `ironic_cell`.
    ironic_cell: str = ""
    ironic_groups: dict[str, str] = {}
    ironic_shards: dict[str, str] = {}
    cell_bus_urls: dict[str, str] = {}
    cell_db_urls: dict[str, str] = {}
    # In the order in which they were set. A cell with a broker or database of its own is in this list.
    cells: tuple[str, ...] = ()

    def bus_of(self, cell: str) -> str:
        return self.cell_bus_urls.get(cell, self.bus_url)

    @property
    def ironic_bus(self) -> str:
        return self.ironic_bus_url or self.bus_url

    @property
    def placement_db(self) -> str:
        return self.placement_db_url or self.db_url

    @property
    def ironic_db(self) -> str:
        return self.ironic_db_url or self.db_url

    def db_of(self, cell: str) -> str:
        return self.cell_db_urls.get(cell, self.db_url)


def addresses_in(environment: Mapping[str, str]) -> Addresses:
    """Read the addresses from environment variables and check them. No settings file is read."""
    return addresses_of(stated_in(environment))


def addresses_for_main(environment: Mapping[str, str], *needed: str) -> Addresses:
    """Starts logging and reads the addresses, for a worker's main. A missing or invalid variable ends the process."""
    with exiting_if_wrong():
        make_ready(environment, *needed)
        if "MOOR_CELL" in needed:
            _checked(check_cell, "cell", environment["MOOR_CELL"], "MOOR_CELL")
        return addresses_in(environment)


def stated_in(environment: Mapping[str, str]) -> dict[str, Stated]:
    """The address settings that the environment variables set. An empty variable counts as not set."""
    return {
        key: from_text(key, text, variable)
        for key in READERS
        if (text := environment.get(variable := f"MOOR_{key.upper()}", "").strip())
    }


def from_text(key: str, text: str, where: str) -> Stated:
    return Stated(READERS[key](text, key, where), where)


def addresses_of(stated: Mapping[str, Stated]) -> Addresses:
    """Check the stated values, and return them as addresses. Keys of other settings are ignored."""
    named = stated.get("cells", Stated((), ""))
    for cell in named.value:
        _checked(check_cell, "cells", cell, named.where)
    single = {
        key: _checked(check, key, str(stated[key].value), stated[key].where)
        for key, check in _SINGLE.items()
        if key in stated
    }
    of_cells = {key: _urls_of_cells(stated, key, check) for key, check in _OF_CELLS.items()}
    by_name = {key: _cells_by_name(stated, key) for key in ("ironic_groups", "ironic_shards")}
    cells = dict.fromkeys((*named.value, *(cell for urls in of_cells.values() for cell in urls)))
    return msgspec.convert({**single, **of_cells, **by_name, "cells": tuple(cells)}, Addresses)


def without_password(url: str) -> str:
    hidden = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
    # The scheme may be misspelled.
    hidden = re.sub(r":(?!//|\s)\S*@", ":***@", hidden)
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", hidden)


def _checked(check: "Check", key: str, text: str, where: str) -> str:
    try:
        return check(text)
    except ValueError as wrong:
        raise BadSetting(key, text, where, str(wrong)) from None


def _bus_url(url: str) -> str:
    parts = urlsplit(url)
    match parts.scheme:
        case "amqp" | "amqps" if not parts.hostname or parts.port == 0:
            raise ValueError("it names no host, or port 0: amqp://user:password@host/vhost")
        case "unix" if not parts.path.startswith("/") or parts.path == "/":
            raise ValueError("it names no socket: unix:///path")
        case "amqp" | "amqps" | "unix" | "memory":
            return url
        case other:
            raise ValueError(f"the scheme must be amqp, amqps, unix or memory, not {other!r}")


def _db_url(url: str) -> str:
    """Check the URL of a database, and complete it with SQLAlchemy's driver if it names none, as in `postgresql://...`."""
    scheme, _, rest = url.partition("://")
    match scheme:
        case "sqlite" | "sqlite+aiosqlite":
            if not rest.startswith("/") or rest == "/":
                raise ValueError("it names no file: sqlite:///path, or sqlite:////absolute/path")
            return f"sqlite+aiosqlite://{rest}"
        case "postgresql" | "postgresql+asyncpg":
            if not rest.partition("/")[2].partition("?")[0]:
                raise ValueError("it names no database: postgresql+asyncpg://user:password@host/name")
            return f"postgresql+asyncpg://{rest}"
        case other:
            raise ValueError(f"the scheme must be sqlite or postgresql+asyncpg, not {other!r}")


def _http_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"the scheme must be http or https, not {parts.scheme!r}")
    if not parts.hostname or parts.port == 0:
        raise ValueError("it names no host, or port 0: http://host:port")
    return url


def check_cell(name: str) -> str:
    """The name of a cell. Raises ValueError with the reason if a cell may not be called so."""
    if not CELL_NAME.fullmatch(name):
        raise ValueError("a cell's name is a-z, 0-9, - and _, begins with a letter or digit, at most 40")
    if name == CELL0:
        raise ValueError("this name is reserved for instances without a cell: choose another")
    return name


def _mapping(stated: Mapping[str, Stated], key: str) -> tuple[dict[str, str], str]:
    """The value of a setting that maps names to values, and where it was set. Empty if it is not set."""
    found = stated.get(key, Stated({}, ""))
    assert isinstance(found.value, dict), f"{key} was read as {found.value!r}"
    return found.value, found.where


def _urls_of_cells(stated: Mapping[str, Stated], key: str, check: "Check") -> dict[str, str]:
    """Check a setting that maps cells to URLs, such as `cell_bus_urls`, and return it.

    If the setting `cells` lists all cells, a cell outside that list is a typing error.
    """
    urls, where = _mapping(stated, key)
    named = stated["cells"].value if "cells" in stated else ()
    for cell in urls:
        _checked(check_cell, key, cell, where)
        if named and cell not in named:
            raise BadSetting(key, cell, where, f"there is no such cell; the cells are {', '.join(named)}")
    return {cell: _checked(check, f"{key}.{cell}", url, where) for cell, url in urls.items()}


def _cells_by_name(stated: Mapping[str, Stated], key: str) -> dict[str, str]:
    """Check a setting that maps Ironic's conductor groups or shards to cells, and return it."""
    cells, where = _mapping(stated, key)
    return {name: _checked(check_cell, key, cell, where) for name, cell in cells.items()}


def _text(text: str, _key: str, _where: str) -> str:
    return text


def _names(text: str, _key: str, _where: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _pairs(text: str, key: str, where: str) -> dict[str, str]:
    """Parse `cell=url` pairs, separated by commas or white space. A comma in a URL is written as %2C."""
    pairs: dict[str, str] = {}
    for pair in re.split(r"[,\s]+", text.strip(", \t\n")):
        cell, equals, url = pair.partition("=")
        if not equals:
            # It may be the second half of a URL whose password has a comma.
            shown = re.sub(r".*@", "***@", pair)
            raise BadSetting(key, shown, where, f"write {_AS_PAIRS[key]},{_AS_PAIRS[key]}")
        if cell in pairs:
            raise BadSetting(key, cell, where, f"this {_AS_PAIRS[key].split('=')[0]} is named twice")
        pairs[cell] = url
    return pairs


# Returns the value, or raises a ValueError that says why it is wrong.
Check = Callable[[str], str]
# How the value of each setting is checked.
_SINGLE: dict[str, Check] = {
    "bus_url": _bus_url,
    "db_url": _db_url,
    "placement_db_url": _db_url,
    "ironic_db_url": _db_url,
    "ironic_bus_url": _bus_url,
    "ironic_url": _http_url,
    "ironic_cell": check_cell,
}
_OF_CELLS: dict[str, Check] = {"cell_bus_urls": _bus_url, "cell_db_urls": _db_url}
_AS_PAIRS = {
    "cell_bus_urls": "cell=url",
    "cell_db_urls": "cell=url",
    "ironic_groups": "group=cell",
    "ironic_shards": "shard=cell",
}
# How the text of each variable or flag is parsed.
READERS: dict[str, Callable[[str, str, str], Value]] = {
    **dict.fromkeys(_SINGLE, _text),
    **dict.fromkeys(_AS_PAIRS, _pairs),
    "cells": _names,
}
