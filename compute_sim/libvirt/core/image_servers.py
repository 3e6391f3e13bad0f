"""Which servers a compute downloads from: those that the operator names, at public addresses or in networks that the operator names. Pure.

The name in a URL says little of where a connection leads. So the URL is checked against the servers, and each address that the
name has against the networks; a redirect is checked like the first URL.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

Network = IPv4Network | IPv6Network
_PORTS = {"http": 80, "https": 443}
_PORT_MAX = 65_535
_SERVER = re.compile(
    r"(https?)://(\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII
)
_UNICAST = ip_network("2000::/3")
# Python counts these as public. Behind 2002::/16 are IPv4 addresses of any kind, and the first is Azure's service for its guests.
_NOT_PUBLIC = tuple(
    [
        ip_network(each)
        for each in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2002::/16", "3fff::/20")
    ]
)


class ImageServer(Struct, frozen=True):
    """Servers that a setting names. `host` is a name or an address, `*.NAME` for all names below one, or `*` for all."""

    scheme: str
    host: str
    port: int

    def has(self, scheme: str, host: str, port: int | None) -> bool:
        """Is this host, as a URL names it, one of these servers?"""
        if (scheme, port or _PORTS.get(scheme)) != (self.scheme, self.port):
            return False
        if self.host.startswith("*"):
            return host.endswith(self.host[1:])
        return _plain(host) == self.host


def read_servers(texts: Sequence[str]) -> tuple[ImageServer, ...]:
    """The servers of `image_servers`. Raises ValueError, which names the wrong one."""
    found = []
    for text in texts:
        match = _SERVER.fullmatch(text.lower())
        port = int(match[3] or _PORTS[match[1]]) if match else 0
        if match is None or not 1 <= port <= _PORT_MAX:
            raise ValueError(
                f"image_servers has {text!r}, must be SCHEME://HOST[:PORT] with http or https, and a name, *.NAME, * or an address"
            )
        found.append(ImageServer(match[1], _plain(match[2].strip("[]")), port))
    return tuple(found)


def read_server_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The networks of `image_networks`. Raises ValueError, which names the wrong one."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as wrong:
            raise ValueError(
                f"image_networks has {text!r}, must be a network such as 10.3.0.0/16: {wrong}"
            ) from None
    return tuple(found)


def may_connect(server: ImageServer, address: str, networks: Sequence[Network]) -> bool:
    """May this address of the server be connected to? It is named itself, public, or in one of these networks."""
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if str(found) == server.host or any(found in each for each in networks):
        return True
    if isinstance(found, IPv6Address) and found not in _UNICAST:
        return False
    return found.is_global and not (found.is_multicast or any(found in each for each in _NOT_PUBLIC))


def _plain(host: str) -> str:
    """The host without a last dot; an address as it is written shortest."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.rstrip(".")
