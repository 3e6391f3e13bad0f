"""The wall clock of every worker. Functions that make decisions do not read it: they get the time as an argument."""

import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import inspect

from kit.errors import FieldProblem


def now() -> datetime:
    return datetime.now(UTC)


# Converts times between datetimes and whole microseconds since 1970, as rows have them.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND_US = 1_000_000
_MICROSECOND = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


def moment(at_us: int) -> datetime:
    return EPOCH + at_us * _MICROSECOND


# Finds timestamps in messages that are too far in the past or future.
#
# JSON allows the years from 1 to 9999. Near these limits, adding a day or changing the time zone leaves the range of
# Python and of the database.


YEAR_MIN, YEAR_MAX = 1970, 8999

# The first timestamp that is too far away: its path and its value.
TooFar = tuple[str, datetime]
Finder = Callable[[Any], TooFar | None]


# Made for the first message of a type: those of all types take long.
@functools.cache
def finder_of(kind: type) -> Finder | None:
    """Make a function that finds a timestamp before the year 1970 or after 8999 in values of this type.

    Returns None if values of the type contain no timestamps.
    """
    return _of(inspect.type_info(kind))


def too_far(found: TooFar) -> FieldProblem:
    path, moment = found
    field = path.removeprefix(".")
    return FieldProblem(
        f"{field} is {moment.isoformat()}: must be in the years from {YEAR_MIN} to {YEAR_MAX}",
        field,
        moment.isoformat(),
    )


def _of(type_info: inspect.Type) -> Finder | None:
    match type_info:
        case inspect.DateTimeType():
            return _look_at
        case inspect.Metadata(type=inner):
            return _of(inner)
        case inspect.UnionType(types=types):
            return _of_union(types)
        case inspect.StructType(fields=fields):
            return _of_fields([(field.name, _of(field.type)) for field in fields])
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) if finder := _of(item):
            return _of_items(finder)
        case _:
            return None


def _look_at(moment: datetime | None) -> TooFar | None:
    return None if moment is None or YEAR_MIN <= moment.year <= YEAR_MAX else ("", moment)


def _of_union(types: tuple[inspect.Type, ...]) -> Finder | None:
    """A finder for values of a union type: it takes the finder of the type that the value's class shows.

    None if no type of the union has timestamps. A union may have several structs, None, and at most one other type.
    """
    by_class = {
        each.cls: finder for each in types if isinstance(each, inspect.StructType) and (finder := _of(each))
    }
    others = [finder for each in types if not isinstance(each, inspect.StructType) and (finder := _of(each))]
    if not by_class and not others:
        return None
    assert len(others) <= 1, "a union may have several structs, told apart by class, and one other type"

    def look(value: Any) -> TooFar | None:
        if value is None:
            return None
        finder = by_class.get(type(value)) or (others[0] if others else None)
        return finder(value) if finder else None

    return look


def _of_fields(fields: list[tuple[str, Finder | None]]) -> Finder | None:
    looked_at = [(name, finder) for name, finder in fields if finder is not None]
    if not looked_at:
        return None

    def look(value: Any) -> TooFar | None:
        for name, finder in looked_at:
            if (found := finder(getattr(value, name))) is not None:
                return f".{name}{found[0]}", found[1]
        return None

    return look


def _of_items(finder: Finder) -> Finder:
    def look(values: Any) -> TooFar | None:
        for number, each in enumerate(values):
            if (found := finder(each)) is not None:
                return f"[{number}]{found[0]}", found[1]
        return None

    return look


# URLs that name several hosts of one cluster, as `amqp://user:password@a:5672,b,[::1]:5673/vhost`.
#
# RabbitMQ's clients read one host, and SQLAlchemy reads one in this place, so such a URL is split into one URL for each host.
# Pure.


# As SQLAlchemy does it, a password may have a slash.
_PARTS = re.compile(r"([^:]*://)((?:[^/?#]*@|[^:/?#]*:[^@]*@)?)([^/?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]\s]+)(?::(.*))?", re.DOTALL)
# An IPv6 address without its brackets.
_IS_ADDRESS = re.compile(r"[0-9A-Fa-f:.]*::[0-9A-Fa-f:.]*")
_PORT_MAX = 65_535
_FORM = "write name, name:port, or [IPv6 address]:port"


def each_host(url: str) -> tuple[str, ...]:
    """A URL for each host that this URL names, in their order. A URL of one host, or without one, is returned unchanged."""
    found = _PARTS.fullmatch(url)
    if found is None or "," not in found[3]:
        return (url,)
    scheme, user, hosts, rest = found.groups()
    return tuple(f"{scheme}{user}{host}{rest}" for host in hosts.split(","))


def hosts_of(url: str) -> tuple[str, ...]:
    """The hosts that a URL names, each as `host:port` or `host`. Has no user and no password."""
    found = _PARTS.fullmatch(url)
    return tuple(found[3].split(",")) if found is not None and found[3] else ()


def names_password(url: str) -> bool:
    """Is there a password before the URL's hosts?"""
    found = _PARTS.fullmatch(url)
    return found is not None and ":" in found[2]


def check_hosts(url: str) -> None:
    """Raise ValueError if one of several hosts is not allowed, and say which. A single host is judged only by its port."""
    hosts = hosts_of(url)
    if len(hosts) == 1 and (shown := shown_host(hosts[0])) != hosts[0]:
        raise ValueError(f"its host is {shown!r}: {_FORM}, with a number as the port")
    if len(hosts) < 2:  # noqa: PLR2004 - several
        return
    for number, host in enumerate(hosts, 1):
        if why := _flaw(host, hosts[: number - 1]):
            raise ValueError(f"host {number} of {len(hosts)} is {shown_host(host)!r}: {why}")


def shown_host(host: str) -> str:
    """The host for error messages. A port that is no number is hidden: in a URL without `@` it may be a password."""
    found = _HOST.fullmatch(host)
    if found is None:
        return host if not host or _IS_ADDRESS.fullmatch(host) else f"{host.partition(':')[0]}:***"
    port = found[2]
    return host if port is None or not port or _is_number(port) else f"{found[1]}:***"


def _flaw(host: str, before: Sequence[str]) -> str:
    """Why this host is not allowed after those; empty if it is."""
    if not host:
        return "it has no name; is there a comma too many?"
    found = _HOST.fullmatch(host)
    if found is None:
        return _FORM
    port = found[2]
    if port is not None and not (_is_number(port) and 1 <= int(port) <= _PORT_MAX):
        return f"its port must be a whole number from 1 to {_PORT_MAX}"
    return "it is named twice" if host in before else ""


def _is_number(port: str) -> bool:
    return port.isascii() and port.isdigit()


# In which order the hosts of a cluster are tried: the host that failed least recently comes first. Pure.


class HostTurns:
    def __init__(self, count: int, first: int = 0) -> None:
        """`first` is the number of the host to try first, as long as none has failed. The others follow in their order."""
        self._usual = [(first + number) % count for number in range(count)]
        self._failures = 0
        self._failed_at = dict.fromkeys(self._usual, 0)

    def order(self) -> list[int]:
        """The numbers of all hosts, in the order in which they should be tried now."""
        return sorted(self._usual, key=self._failed_at.__getitem__)

    def failed(self, host: int) -> None:
        """Note that a host could not be used, or that a connection to it was lost: all others are tried before it."""
        self._failures += 1
        self._failed_at[host] = self._failures
