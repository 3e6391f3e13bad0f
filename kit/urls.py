"""The hosts that a URL names, as `amqp://user:password@a:5672,b,[::1]:5673/vhost`, and the order in which they are tried. And the file
of a password, which a URL may name.

RabbitMQ's clients read one host, and SQLAlchemy reads one in this place, so such a URL is split into one URL for each host.
"""

import logging
import os
import re
import stat
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs

from kit.errors import Unavailable

# As SQLAlchemy does it, a password may have a slash.
_PARTS = re.compile(r"([^:]*://)((?:[^/?#]*@|[^:/?#]*:[^@]*@)?)([^/?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]\s]+)(?::(.*))?", re.DOTALL)
# An IPv6 address without its brackets.
_IS_ADDRESS = re.compile(r"[0-9A-Fa-f:.]*::[0-9A-Fa-f:.]*")
PORT_MAX = 65_535
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


def options_of(url: str) -> dict[str, list[str]]:
    """What follows the `?` of a URL. A password may have a `?`, too."""
    found = _PARTS.fullmatch(url)
    return {} if found is None else parse_qs(found[4].partition("?")[2], keep_blank_values=True)


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
    if port is not None and not (_is_number(port) and 1 <= int(port) <= PORT_MAX):
        return f"its port must be a whole number from 1 to {PORT_MAX}"
    return "it is named twice" if host in before else ""


def _is_number(port: str) -> bool:
    return port.isascii() and port.isdigit()


class HostTurns:
    """In which order the hosts of a cluster are tried: the host that failed least recently comes first."""

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


# Passwords in files. Each file has one password, and is read anew at each login.
#
# So a password is changed without a stop: the connections that are open go on, and the next one uses the new password. Until the
# file has it, the server refuses the login, and the worker tries again.


log = logging.getLogger(__name__)

# The part of a URL's query that names the file.
PASSWORD_FILE: Final = "passwordfile"  # noqa: S105 - the name of a parameter
SECRET_BYTES_MAX: Final = 4096

# The files of which the log has said that others may read them, with their modes then.
_told: dict[str, int] = {}


class BadSecretFile(Unavailable):
    """The file of a password cannot be used now. The text names the file, and has nothing of its content."""


def read_secret(file: str) -> str:
    """The password in this file, without the line end. Raises BadSecretFile."""
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - its descriptor is needed
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(SECRET_BYTES_MAX + 1)
    except OSError as problem:
        raise BadSecretFile(
            f"the password's file {file!r} cannot be read: {problem.strerror or problem}"
        ) from None
    _tell_if_others_read(file, stat.S_IMODE(mode))
    if len(content) > SECRET_BYTES_MAX:
        raise _bad(file, f"has more than {SECRET_BYTES_MAX} bytes")
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _bad(file, "is not UTF-8") from None
    if not secret:
        raise _bad(file, "is empty")
    if any(each in secret for each in "\n\r\0"):
        raise _bad(file, "has several lines")
    return secret


def _tell_if_others_read(file: str, mode: int) -> None:
    """Say it once for each mode. The group is not meant: a worker's file often belongs to root and the worker's group."""
    if mode & stat.S_IRWXO == 0:
        _told.pop(file, None)
    elif _told.get(file) != mode:
        _told[file] = mode
        log.warning(
            "the password's file %r may be used by every user of this machine (mode %04o): chmod 600 or 640",
            file,
            mode,
        )


def _bad(file: str, why: str) -> BadSecretFile:
    return BadSecretFile(
        f"the password's file {file!r} {why}: it must have the password alone, in one line of UTF-8"
    )
