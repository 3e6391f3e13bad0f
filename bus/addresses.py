"""The addresses of brokers and databases, and the cells, read from settings and checked.

Each key has one name: `bus_url` in a file is `MOOR_BUS_URL` in the environment. An error names the key, the value
(never a password) and where it was set.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from bus.process import is_ready
from bus.topology import CELL0, CELL_NAME

Value = str | tuple[str, ...] | dict[str, str]


class BadSetting(ValueError):  # noqa: N818 - named for what it is
    """An invalid setting: its key, its value, where it was set, and what is allowed."""

    def __init__(self, key: str, value: object, where: str, why: str) -> None:
        super().__init__(f"{key} is {without_password(repr(value))} ({where}): {why}")
        self.key = key


class Stated(Struct, frozen=True):
    """A value and where it was set: a flag, a variable, a file."""

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
    """From the environment variables alone."""
    return addresses_of(stated_in(environment))


def addresses_for_main(environment: Mapping[str, str], *needed: str) -> Addresses | None:
    """Starts logging and reads the addresses, for a worker's main. If a needed variable is missing or invalid, it
    prints the reason to stderr and returns None.
    """
    if not is_ready(environment, *needed):
        return None
    try:
        return addresses_in(environment)
    except BadSetting as wrong:
        sys.stderr.write(f"{wrong}\n")
        return None


def stated_in(environment: Mapping[str, str]) -> dict[str, Stated]:
    """The values of the environment variables; an empty variable counts as not set."""
    return {
        key: from_text(key, text, variable)
        for key in READERS
        if (text := environment.get(variable := f"MOOR_{key.upper()}", "").strip())
    }


def from_text(key: str, text: str, where: str) -> Stated:
    return Stated(READERS[key](text, key, where), where)


def addresses_of(stated: Mapping[str, Stated]) -> Addresses:
    """The addresses, checked. Other keys are ignored."""
    buses = {cell: _bus_url(url) for cell, url in _by_cell(stated, "cell_bus_urls").items()}
    databases = {cell: _db_url(url) for cell, url in _by_cell(stated, "cell_db_urls").items()}
    named = stated.get("cells", Stated((), ""))
    for cell in named.value:
        _check_cell("cells", cell, named.where)
    _check_are_named(stated, "cell_bus_urls", buses)
    _check_are_named(stated, "cell_db_urls", databases)
    return Addresses(
        bus_url=_one(stated, "bus_url", _bus_url),
        db_url=_one(stated, "db_url", _db_url),
        placement_db_url=_one(stated, "placement_db_url", _db_url),
        ironic_db_url=_one(stated, "ironic_db_url", _db_url),
        ironic_bus_url=_one(stated, "ironic_bus_url", _bus_url),
        ironic_url=_one(stated, "ironic_url", _http_url),
        ironic_cell=_one(stated, "ironic_cell", _cell),
        ironic_groups=_cells_by_name(stated, "ironic_groups"),
        ironic_shards=_cells_by_name(stated, "ironic_shards"),
        cell_bus_urls=buses,
        cell_db_urls=databases,
        cells=tuple(dict.fromkeys((*named.value, *buses, *databases))),
    )


def without_password(url: str) -> str:
    """A URL without its password, for display."""
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)


def _one(stated: Mapping[str, Stated], key: str, check: Callable[["_Url"], str]) -> str:
    found = stated.get(key)
    return "" if found is None else check(_Url(key, str(found.value), found.where))


def _by_cell(stated: Mapping[str, Stated], key: str) -> dict[str, "_Url"]:
    found = stated.get(key)
    if found is None:
        return {}
    assert isinstance(found.value, dict), f"{key} was read as {found.value!r}"
    for cell in found.value:
        _check_cell(key, cell, found.where)
    return {cell: _Url(f"{key}.{cell}", url, found.where) for cell, url in found.value.items()}


class _Url(Struct, frozen=True):
    """A URL to check, and the data for an error about it."""

    key: str
    text: str
    where: str

    def bad(self, why: str) -> BadSetting:
        return BadSetting(self.key, self.text, self.where, why)


def _bus_url(url: _Url) -> str:
    parts = urlsplit(url.text)
    match parts.scheme:
        case "amqp" | "amqps" if not parts.hostname:
            raise url.bad("it names no host: amqp://user:password@host/vhost")
        case "unix" if not parts.path.startswith("/") or parts.path == "/":
            raise url.bad("it names no socket: unix:///path")
        case "amqp" | "amqps" | "unix" | "memory":
            return url.text
        case other:
            raise url.bad(f"the scheme must be amqp, amqps, unix or memory, not {other!r}")


def _db_url(url: _Url) -> str:
    """Completes the URL with SQLAlchemy's driver: `sqlite:///path` and `postgresql://...` are accepted without it."""
    scheme, _, rest = url.text.partition("://")
    match scheme:
        case "sqlite" | "sqlite+aiosqlite":
            if not rest.startswith("/") or rest == "/":
                raise url.bad("it names no file: sqlite:///path, or sqlite:////absolute/path")
            return f"sqlite+aiosqlite://{rest}"
        case "postgresql" | "postgresql+asyncpg":
            if not rest.partition("/")[2].partition("?")[0]:
                raise url.bad("it names no database: postgresql+asyncpg://user:password@host/name")
            return f"postgresql+asyncpg://{rest}"
        case other:
            raise url.bad(f"the scheme must be sqlite or postgresql+asyncpg, not {other!r}")


def _http_url(url: _Url) -> str:
    parts = urlsplit(url.text)
    if parts.scheme not in ("http", "https"):
        raise url.bad(f"the scheme must be http or https, not {parts.scheme!r}")
    if not parts.hostname:
        raise url.bad("it names no host: http://host:port")
    return url.text


def _cell(name: _Url) -> str:
    _check_cell(name.key, name.text, name.where)
    return name.text


def _cells_by_name(stated: Mapping[str, Stated], key: str) -> dict[str, str]:
    """The cell for each conductor group or shard."""
    found = stated.get(key)
    if found is None:
        return {}
    assert isinstance(found.value, dict), f"{key} was read as {found.value!r}"
    for cell in found.value.values():
        _check_cell(key, cell, found.where)
    return dict(found.value)


def _check_cell(key: str, cell: str, where: str) -> None:
    if not CELL_NAME.fullmatch(cell):
        raise BadSetting(
            key, cell, where, "a cell's name is a-z, 0-9, - and _, begins with a letter or digit, at most 40"
        )
    if cell == CELL0:
        raise BadSetting(
            key, cell, where, "this name is reserved for instances without a cell: choose another"
        )


def _check_are_named(stated: Mapping[str, Stated], key: str, cells: Iterable[str]) -> None:
    """If the setting `cells` lists all cells, a cell outside the list is a typing error."""
    named = stated.get("cells")
    if named is None or not named.value:
        return
    for cell in cells:
        if cell not in named.value:
            raise BadSetting(
                key, cell, stated[key].where, f"there is no such cell; the cells are {', '.join(named.value)}"
            )


def _text(text: str, _key: str, _where: str) -> str:
    return text


def _names(text: str, _key: str, _where: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _pairs(text: str, key: str, where: str) -> dict[str, str]:
    """`cell=url` pairs, separated by commas or white space (so write a comma in a URL as %2C)."""
    pairs: dict[str, str] = {}
    for pair in re.split(r"[,\s]+", text.strip(", \t\n")):
        cell, equals, url = pair.partition("=")
        if not equals:
            raise BadSetting(key, pair, where, f"write {_AS_PAIRS[key]},{_AS_PAIRS[key]}")
        if cell in pairs:
            raise BadSetting(key, cell, where, f"this {_AS_PAIRS[key].split('=')[0]} is named twice")
        pairs[cell] = url
    return pairs


_AS_PAIRS = {
    "cell_bus_urls": "cell=url",
    "cell_db_urls": "cell=url",
    "ironic_groups": "group=cell",
    "ironic_shards": "shard=cell",
}
# How the text of each variable or flag is parsed.
READERS: dict[str, Callable[[str, str, str], Value]] = {
    "bus_url": _text,
    "db_url": _text,
    "placement_db_url": _text,
    "ironic_db_url": _text,
    "ironic_bus_url": _text,
    "ironic_url": _text,
    "ironic_cell": _text,
    "ironic_groups": _pairs,
    "ironic_shards": _pairs,
    "cell_bus_urls": _pairs,
    "cell_db_urls": _pairs,
    "cells": _names,
}
