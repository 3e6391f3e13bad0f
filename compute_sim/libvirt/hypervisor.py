"""The connection to one libvirt: it is opened again when it breaks, and tells of events.

libvirt's calls block. So all of this runs in threads of its own, and nothing here may be called on the event loop but `is_away`.
Errors are told in libvirt's own words.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import libvirt

from compute_sim.libvirt.failures import LibvirtAway, WorkFailed

log = logging.getLogger(__name__)

# The connection counts as broken after this many unanswered messages, one each KEEPALIVE_S.
KEEPALIVE_S, KEEPALIVE_COUNT = 3, 3
RETRY_S = 0.5

_AWAY = frozenset(
    {
        libvirt.VIR_ERR_INTERNAL_ERROR,
        libvirt.VIR_ERR_RPC,
        libvirt.VIR_ERR_SYSTEM_ERROR,
        libvirt.VIR_ERR_NO_CONNECT,
        libvirt.VIR_ERR_INVALID_CONN,
    }
)
_events_lock = threading.Lock()
_events: threading.Thread | None = None


def _run_events() -> None:
    """Libvirt's own event loop, which keeps connections alive and calls back; one for the process."""
    global _events  # noqa: PLW0603 - libvirt has one event loop for a process
    with _events_lock:
        if _events is None:
            libvirt.virEventRegisterDefaultImpl()
            # It prints each error, beside raising it.
            libvirt.registerErrorHandler(lambda *_: None, None)
            _events = threading.Thread(target=_turn, name="libvirt events", daemon=True)
            _events.start()


def _turn() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            # Without this thread no connection is kept alive, and no broken one is noticed.
            log.warning("libvirt's events cannot be read, they are tried again: %s", error)
            time.sleep(RETRY_S)


class Hypervisor:
    """One libvirt. `told` is called, in some thread, after an event about a domain, and when the connection breaks or is back."""

    def __init__(self, uri: str, told: Callable[[], None]) -> None:
        _run_events()
        self.uri = uri
        self._told = told
        self._lock = threading.Lock()
        self._connection: libvirt.virConnect | None = None
        self._why_away = "not connected yet"
        self._tried_at_s = float("-inf")

    @property
    def why_away(self) -> str:
        return self._why_away

    @contextmanager
    def connected(self) -> Iterator[libvirt.virConnect]:
        """The connection, for some calls. Raises `LibvirtAway`, or `WorkFailed` if libvirt refuses a call."""
        connection = self._open()
        try:
            yield connection
        except libvirt.libvirtError as error:
            if not self._is_alive(connection, error):
                self._lose(connection, str(error))
                raise LibvirtAway(f"libvirt at {self.uri} is away: {error}") from error
            raise WorkFailed(f"libvirt: {error}") from error

    def _open(self) -> libvirt.virConnect:
        with self._lock:
            if self._connection is not None:
                return self._connection
            if time.monotonic() - self._tried_at_s < RETRY_S:
                raise LibvirtAway(f"libvirt at {self.uri} is away: {self._why_away}")
            self._tried_at_s = time.monotonic()
            try:
                connection = libvirt.open(self.uri)
                # The test driver has no keepalive, and no way to close.
                with suppress(libvirt.libvirtError):
                    connection.registerCloseCallback(self._on_close, None)
                with suppress(libvirt.libvirtError):
                    connection.setKeepAlive(KEEPALIVE_S, KEEPALIVE_COUNT)
                connection.domainEventRegisterAny(
                    None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle, None
                )
            except libvirt.libvirtError as error:
                self._why_away = str(error)
                raise LibvirtAway(f"libvirt at {self.uri} is away: {error}") from error
            self._connection, self._why_away = connection, ""
        self._told()
        return connection

    def _on_close(self, connection: libvirt.virConnect, reason: int, _: Any) -> None:
        self._lose(connection, f"the connection has ended (reason {reason})")

    def _on_lifecycle(self, *_: Any) -> None:
        # What an event says may be old by now: it only leads to a look.
        self._told()

    def _is_alive(self, connection: libvirt.virConnect, error: libvirt.libvirtError) -> bool:
        if error.get_error_code() not in _AWAY:
            return True
        try:
            return bool(connection.isAlive())
        except libvirt.libvirtError:
            return False

    def _lose(self, connection: libvirt.virConnect, why: str) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection, self._why_away = None, why
        self._told()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._why_away = "the compute has closed the connection"
        if connection is not None:
            with suppress(libvirt.libvirtError):
                connection.close()
