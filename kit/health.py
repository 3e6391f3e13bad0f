"""A worker's health and readiness, and what it waits for if it is not ready.

These are computed from the worker's parts on each request; nothing is stored here.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from kit.parts import PartState, Periodic, statuses
from kit.process import Systemd
from kit.urls import PORT_MAX

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2


class About(Struct, frozen=True):
    """The facts that a worker publishes about itself. No URL here contains a password."""

    role: str
    version: str
    cell: str = ""
    brokers: tuple[str, ...] = ()
    database: str = ""


class Health:
    """Reports whether the parts of a worker, and the parts inside them, are healthy and ready."""

    def __init__(self, about: About, parts: Sequence[object]) -> None:
        self.about = about
        self.parts = parts
        self.is_stopping = False

    def failing(self) -> list[dict[str, object]]:
        now_s = asyncio.get_running_loop().time()
        return [
            {
                "part": each.name,
                "state": each.state.value,
                "failures": each.failures,
                "last_error": each.last_error,
                "for_s": round(now_s - each.since_s, 3),
            }
            for each in statuses(self.parts)
            if each.state is PartState.FAILING or self._has_ended(each.state)
        ]

    @property
    def is_well(self) -> bool:
        """Whether no part has ended before the worker was told to stop.

        A failing part does not make the worker unhealthy: the part retries, and a restart would not help.
        """
        return not any(self._has_ended(each.state) for each in statuses(self.parts))

    def awaits(self) -> Mapping[str, str]:
        """The reasons why the worker is not ready yet, by the name of the part; empty if it is ready."""
        if self.is_stopping:
            return {"process": "it is stopping"}
        return {each.name: why for each in statuses(self.parts) if (why := each.awaits)}

    def _has_ended(self, state: PartState) -> bool:
        return state is PartState.ENDED and not self.is_stopping


class ReadyTeller(Periodic):
    """Logs when the worker becomes ready, and when it stops being ready; and tells systemd."""

    def __init__(self, health: Health) -> None:
        super().__init__("look whether it is ready", self._look, LOOK_EVERY_S)
        self._health = health
        self._was_ready = False
        self._systemd = Systemd()
        self._told = ""

    async def _look(self) -> None:
        self._systemd.alive(asyncio.get_running_loop().time())
        awaited = self._health.awaits()
        self._tell(awaited)
        if self._was_ready == (not awaited) or self._health.is_stopping:
            return
        self._was_ready = not awaited
        if self._was_ready:
            log.info("%s is ready", self._health.about.role)
        else:
            what = "; ".join(f"{name}: {why}" for name, why in awaited.items())
            log.warning("%s is no longer ready: %s", self._health.about.role, what)

    def _tell(self, awaited: Mapping[str, str]) -> None:
        """Tell systemd what is different since it was last told."""
        told = "stopping" if self._health.is_stopping else ", ".join(awaited) or "ready"
        if told == self._told:
            return
        self._told = told
        if self._health.is_stopping:
            self._systemd.stopping()
        elif awaited:
            self._systemd.awaits(told)
        else:
            self._systemd.ready()


# The addresses that HTTP servers of a process listen on: read from settings, bound, and written for people.


HEALTH_VARIABLE = "MOOR_HEALTH_LISTEN"
HEALTH_SETTING = f"{HEALTH_VARIABLE} (--health-listen)"
LOOPBACK = "127.0.0.1"
BACKLOG = 2_048


class BadAddressError(ValueError):
    """The process cannot listen on this address."""


class Listen(Struct, frozen=True):
    host: str
    port: int
    # Other processes may listen at the same address: the kernel distributes connections among them.
    is_shared: bool = False

    @property
    def is_loopback(self) -> bool:
        """Is this a loopback address, which only this machine can reach?"""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def bound(self, what: str) -> socket.socket:
        """A socket that listens here; port 0 is any free port. An error calls the address `what`."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            opened = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=self.is_shared)
        except OSError as problem:
            raise BadAddressError(f"{what} is {self}: {problem.strerror or problem}") from None
        opened.setblocking(False)
        return opened


def read_address(text: str, setting: str, examples: str, *, default_host: str = "") -> Listen:
    """Parse `host:port` or `[::1]:port`. With a default host, `port` and `:port` are valid too.

    If the text is anything else, the error names the setting and says what to write instead (`examples`).
    """
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default_host
    # Python refuses to read a number of thousands of digits.
    if (
        not host
        or not port.isascii()
        or not port.isdigit()
        or len(port) > len(str(PORT_MAX))
        or int(port) > PORT_MAX
    ):
        raise BadAddressError(f"{setting} is {text!r}: write {examples}; a port is at most {PORT_MAX}")
    return Listen(host, int(port))


def read_health_address(text: str) -> Listen:
    """Parse host and port. `9100` and `:9100` listen on loopback; `0.0.0.0:9100` and `[::]:9100` everywhere."""
    examples = "port or host:port, as 9100, 0.0.0.0:9100 or [::]:9100"
    return read_address(text, HEALTH_SETTING, examples, default_host=LOOPBACK)


def read_listen(text: str, *, is_shared: bool = False) -> Listen:
    """Parse the address of an HTTP service: `127.0.0.1:8780`, `[::1]:8780`, `localhost:8780`; port 0 is any free port."""
    listen = read_address(text, "listen", "host:port, as 127.0.0.1:8780 or [::]:8780")
    return structs.replace(listen, is_shared=is_shared)
