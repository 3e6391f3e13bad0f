"""The addresses of brokers and databases, and the cells: settings that stand in no table of the settings file.

Each has one name: `bus_url` in a file is `MOOR_BUS_URL` in the environment.
"""

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import SplitResult, parse_qs, urlsplit

from msgspec import Meta, Struct, structs

from bus.broker import Broker
from bus.queues import CELL0, CELL_NAME, Limits
from kit.process import exiting_if_wrong, make_ready
from kit.settings import Section, near, require, without_password
from kit.urls import PASSWORD_FILE, check_hosts, each_host, hosts_of, names_password, options_of

# Workers write, so a standby is of no use to them.
_WRITABLE = ("primary", "read-write")

# What may follow the `?` of a URL, and which values an option has that is no text. The libraries ignore an option that they do not
# know, or raise an error that says nothing: a misspelt `cafile` would go unnoticed.
_NUMBER, _ANY = "[0-9]{1,9}", ".+"
_OPTIONS_OF_BUS = {
    **dict.fromkeys(
        ("auth", "cafile", "capath", "cadata", "certfile", "keyfile", PASSWORD_FILE, "name"), _ANY
    ),
    **dict.fromkeys(("heartbeat", "timeout", "no_verify_ssl"), _NUMBER),
}
_OPTIONS_OF_POSTGRESQL = {
    **dict.fromkeys(("host", "user", "password", "passfile", PASSWORD_FILE, "target_session_attrs"), _ANY),
    **dict.fromkeys(("sslmode", "sslrootcert", "sslcert", "sslkey", "krbsrvname", "gsslib"), _ANY),
    **dict.fromkeys(("port", "prepared_statement_cache_size"), _NUMBER),
    "ssl": "disable|allow|prefer|require|verify-ca|verify-full",
}


def _check_options(url: str, known: Mapping[str, str]) -> None:
    """Raise ValueError if the query of the URL has an option that is not among these, or one with another value."""
    for name, values in options_of(url).items():
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(
                f"it has the option {name!r}, which does not exist; {near(name, known, f'known are {allowed}')}"
            )
        if known[name] != _ANY and not all(re.fullmatch(known[name], each) for each in values):
            form = "a whole number" if known[name] == _NUMBER else known[name].replace("|", ", ")
            raise ValueError(f"its {name} is {' and '.join(map(repr, values))}, must be {form}")


def _bus_url(url: str) -> str:
    check_hosts(url)
    check_password_file(url)
    parts = _split(each_host(url)[0])
    _check_options(url, _OPTIONS_OF_BUS if parts.scheme.startswith("amqp") else {})
    _check_login(parts)
    match parts.scheme:
        case "amqp" | "amqps" if "," in parts.path:
            raise ValueError("its virtual host has a comma, which is written as %2C")
        case "amqp" | "amqps" if not parts.hostname or parts.port == 0:
            raise ValueError("it names no host, or port 0: amqp://user:password@host/vhost")
        case "unix" if not parts.path.startswith("/") or parts.path == "/":
            raise ValueError("it names no socket: unix:///path")
        case "amqp" | "amqps" | "unix" | "memory":
            return url
        case other:
            raise ValueError(f"the scheme must be amqp, amqps, unix or memory, not {other!r}")


def _split(url: str) -> SplitResult:
    """The parts of the URL. The errors of the standard library quote what may be a part of the password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(
            "it cannot be read: write scheme://user:password@host:port, the port as a number up to 65535, and special characters of "
            "a password as %2F (/), %40 (@), %3A (:), %23 (#) and so on"
        ) from None
    return parts


def check_password_file(url: str) -> None:
    """Raise ValueError if the URL names a file of its password in a wrong way."""
    query = options_of(url)
    named = query.get(PASSWORD_FILE)
    if named is None:
        return
    if len(named) != 1 or not named[0]:
        raise ValueError(f"its {PASSWORD_FILE} must be one file, not {' and '.join(map(repr, named))}")
    if names_password(url) or "password" in query:
        raise ValueError(f"it has a password and {PASSWORD_FILE}={named[0]}: leave one of them out")


def _check_login(parts: SplitResult) -> None:
    """By which mechanism the client logs in to RabbitMQ: by a password, or (`auth=external`) by its certificate."""
    query = parse_qs(parts.query, keep_blank_values=True)
    for how in query.get("auth", ()):
        if how.lower() not in ("plain", "external"):
            raise ValueError(
                f"its auth is {how!r}, must be plain (by a password) or external (by a certificate)"
            )
        if how.lower() == "plain":
            continue
        if parts.scheme != "amqps" or not query.get("certfile"):
            raise ValueError("its auth is external, which needs amqps:// and a certificate: &certfile=FILE")
        if not parts.username:
            raise ValueError(
                "its auth is external, and it names no user: write the name that RabbitMQ reads from the certificate, as "
                "amqps://moor-scheduler@host/vhost?..."
            )
        if parts.password or PASSWORD_FILE in query:
            raise ValueError("its auth is external, and it has a password: leave one of them out")


def _db_url(url: str) -> str:
    """Check the URL of a database, and complete it with SQLAlchemy's driver if it names none, as in `postgresql://...`."""
    check_hosts(url)
    check_password_file(url)
    scheme, slashes, rest = url.partition("://")
    match scheme:
        case "sqlite" | "sqlite+aiosqlite":
            if not rest.startswith("/") or rest == "/":
                raise ValueError("it names no file: sqlite:///path, or sqlite:////absolute/path")
            _check_options(url, {})
            return f"sqlite+aiosqlite://{rest}"
        case "postgresql" | "postgresql+asyncpg":
            if not rest.partition("/")[2].partition("?")[0]:
                raise ValueError("it names no database: postgresql+asyncpg://user:password@host/name")
            _check_options(url, _OPTIONS_OF_POSTGRESQL)
            _check_wanted_servers(url)
            return f"postgresql+asyncpg://{rest}"
        case other:
            named = other if slashes else ""
            raise ValueError(f"the scheme must be sqlite or postgresql+asyncpg, not {named!r}")


def _check_wanted_servers(url: str) -> None:
    """Of several hosts, only a primary will do, and this is also so without `target_session_attrs`."""
    wanted = options_of(url).get("target_session_attrs", [_WRITABLE[0]])
    if len(wanted) != 1 or wanted[0] not in _WRITABLE:
        stated = " and ".join(map(repr, wanted))
        raise ValueError(
            f"its target_session_attrs is {stated}, must be {' or '.join(_WRITABLE)}: workers write"
        )


def _service_url(url: str) -> str:
    # Keystone's catalogue has the address (kit/login.py).
    if url == "keystone":
        return url
    parts = _split(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(
            f"the scheme must be http or https, not {parts.scheme!r}; `keystone` stands for the address in Keystone's catalogue"
        )
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


Cell = Annotated[str, Meta(extra={"check": check_cell})]
BusUrl = Annotated[str, Meta(extra={"check": _bus_url, "metavar": "URL"})]
DatabaseUrl = Annotated[str, Meta(extra={"check": _db_url, "metavar": "URL"})]
ServiceUrl = Annotated[str, Meta(extra={"check": _service_url, "metavar": "URL"})]


class Addresses(Struct, frozen=True, kw_only=True):
    """The addresses of the API level's broker and database, and of the cells that have their own. Empty means not set."""

    bus_url: Annotated[
        BusUrl,
        Meta(
            description="The broker: amqp://user:password@host/vhost, amqps://..., or unix:///path; for `moor up` and `moor "
            "demo` also memory://. The nodes of a cluster are named with commas: amqp://user:password@a,b:5673,c/vhost. Without "
            "a broker, commands use the bus of `moor up` on this machine.",
            extra={"flag": "--bus"},
        ),
    ] = ""
    db_url: Annotated[
        DatabaseUrl,
        Meta(
            description="The database: postgresql+asyncpg://user:password@host/name or sqlite:///path. A primary and its standbys are "
            "named with commas: postgresql+asyncpg://user:password@a:5432,b:5432/name; the one that is the primary is used.",
            extra={"flag": "--db"},
        ),
    ] = ""
    placement_db_url: Annotated[
        DatabaseUrl,
        Meta(
            description="The database of placement's tables, if not db_url. One of its own takes load off the other.",
            extra={"flag": "--placement-db"},
        ),
    ] = ""
    ironic_db_url: Annotated[
        DatabaseUrl,
        Meta(
            description="The database of the bare-metal daemons' rows, if not db_url. Each Ironic needs one of its own.",
            extra={"flag": "--ironic-db"},
        ),
    ] = ""
    ironic_bus_url: Annotated[
        BusUrl,
        Meta(description="The broker on which Ironic publishes its notifications, if not bus_url."),
    ] = ""
    ironic_url: Annotated[
        ServiceUrl,
        Meta(
            description="Ironic's REST API: http://user:password@host:port, or `keystone`: the address in Keystone's catalogue. Without it only "
            "notifications count, and nodes cannot be read again; commands then use that of `moor up --nodes`.",
            extra={"flag": "--ironic"},
        ),
    ] = ""
    nova_bus_url: Annotated[
        BusUrl,
        Meta(
            description="Nova's own RabbitMQ, on which a worker in the place of nova-scheduler answers: `transport_url` of nova.conf as "
            "amqp://user:password@host/vhost.",
            extra={"flag": "--nova-bus"},
        ),
    ] = ""
    ironic_cell: Annotated[
        Cell,
        Meta(
            description="The cell of bare-metal nodes that ironic_shards and ironic_groups do not name. If cells names only one, "
            "that is the default."
        ),
    ] = ""
    ironic_groups: Annotated[
        dict[str, Cell],
        Meta(description="The cell of each conductor group of Ironic.", extra={"metavar": "group=cell"}),
    ] = {}
    ironic_shards: Annotated[
        dict[str, Cell],
        Meta(
            description="The cell of each shard of Ironic. A node's shard overrides its conductor group.",
            extra={"metavar": "shard=cell"},
        ),
    ] = {}
    cell_bus_urls: Annotated[
        dict[Cell, BusUrl],
        Meta(
            description="The cells with a broker of their own. Such a cell goes on when the other broker is down.",
            extra={"metavar": "cell=url"},
        ),
    ] = {}
    cell_db_urls: Annotated[
        dict[Cell, DatabaseUrl],
        Meta(
            description="The cells with a database of their own. Such a cell goes on when the other database is down.",
            extra={"metavar": "cell=url"},
        ),
    ] = {}
    cells: Annotated[
        tuple[Cell, ...],
        Meta(
            description="The names of all cells. Without it, the cells are those of cell_bus_urls and cell_db_urls.",
            extra={"flag": "--cells", "metavar": "NAME,NAME"},
        ),
    ] = ()

    cell: Annotated[Cell, Meta(description="The cell of this conductor or compute.")] = ""

    def __post_init__(self) -> None:
        of_cells = {"cell_bus_urls": self.cell_bus_urls, "cell_db_urls": self.cell_db_urls}
        for field, urls in of_cells.items():
            for cell in urls:
                require(
                    not self.cells or cell in self.cells,
                    f"{field} has {cell!r}: there is no such cell; the cells are {', '.join(self.cells)}",
                )
        named = (*self.cells, *self.cell_bus_urls, *self.cell_db_urls)
        structs.force_setattr(self, "cells", tuple(dict.fromkeys(named)))

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


ADDRESSES = Section("", Addresses, "every worker and command", others=("*",))


def addresses_for_main(environment: Mapping[str, str], *needed: str) -> Addresses:
    """Starts logging and reads the addresses, for a worker's main. A missing or invalid variable ends the process."""
    with exiting_if_wrong():
        make_ready(environment, *needed)
        return ADDRESSES.read(environment)


# Finds the broker that a URL names, so that other code need not know which kind of broker it uses.


def broker_at(url: str) -> Broker:
    """The broker of an `amqp://`, `amqps://` or `unix:///path` URL.

    An `amqp` URL may name several nodes, with commas (kit/urls.py).

    A memory broker has no URL: the code that creates it hands the object to its users.
    """
    check_hosts(url)
    scheme = urlsplit(url).scheme
    match scheme:
        case "amqp" | "amqps":
            from bus.rabbit import RabbitBroker  # noqa: PLC0415 - so that embedded use never loads the AMQP client

            return RabbitBroker(url)
        case "unix":
            from bus.unix_socket.client import UnixBroker  # noqa: PLC0415

            parts = urlsplit(url)
            return UnixBroker(parts.path, user=parts.username or "")
        case _:
            raise ValueError(
                f"bus url {without_password(url)!r}: the scheme must be amqp, amqps or unix, not {scheme!r}"
            )


def limits_at(url: str) -> Limits:
    """The limits of the queues of a broker. A URL with several hosts says that it has several nodes."""
    return Limits(replicates_questions=len(hosts_of(url)) > 1)
