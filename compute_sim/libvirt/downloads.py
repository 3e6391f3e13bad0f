"""Downloads what a URL names: from servers that the settings allow, and within the times that they set. Everything here blocks.

Tenants name these URLs. So each address is checked before it is connected to, redirects are followed by hand, nothing of the
environment counts (proxies, passwords in ~/.netrc), and nothing is unpacked. A server that sends little, or nothing, or headers
without end, ends its own download alone: whether to give up is asked all the time, and not only when something comes.
"""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import httpx

from bus.configuration.sections import without_password
from bus.tls import client_tls
from compute_sim.libvirt.core.image_servers import may_connect, read_server_networks, read_servers
from compute_sim.libvirt.failures import WorkFailed
from compute_sim.libvirt.settings import LibvirtSettings

T = TypeVar("T")

CHUNK = 1024 * 1024
# So much must come within each `image_s`.
_LEAST = 1024 * 1024
_POLL_S = 0.1
_REDIRECTS_MAX = 5
_URL_MAX = 2048
_SHOWN_MAX = 100
_OK = 200


@contextmanager
def downloaded(
    url: str, settings: LibvirtSettings, give_up: Callable[[], None]
) -> Iterator[tuple[str, Callable[[], Iterator[bytes]]]]:
    """The version of what is at this URL, and its content if that is asked for. Raises `WorkFailed`, which names the URL."""
    with asyncio.Runner() as runner:
        download = _Download(url, settings, give_up)
        try:
            response = runner.run(download.within_limits(download.opened()))
            parts = response.aiter_raw(CHUNK)

            def chunks() -> Iterator[bytes]:
                while chunk := runner.run(download.within_limits(_next(parts))):
                    yield chunk

            names = ("etag", "last-modified", "content-length")
            yield " ".join(response.headers.get(name, "") for name in names), chunks
        finally:
            runner.run(download.close())


class _Download:
    def __init__(self, url: str, settings: LibvirtSettings, give_up: Callable[[], None]) -> None:
        if len(url) > _URL_MAX:
            raise WorkFailed(f"the URL of an image has {len(url)} characters, at most {_URL_MAX} are allowed")
        # The reason of a failure is short, and the words behind the URL matter more.
        self._name = f"image {without_password(url)[:_SHOWN_MAX]!r}"
        self._url = url
        self._settings = settings
        self._servers = read_servers(settings.image_servers)
        self._networks = read_server_networks(settings.image_networks)
        self._give_up = give_up
        self._by_s = time.monotonic() + settings.download_s
        self._response: httpx.Response | None = None
        # How long the server has been waited for since so much was there.
        self._waited_s, self._had = 0.0, 0
        self._transport = httpx.AsyncHTTPTransport(
            verify=client_tls(), trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()
        await self._transport.aclose()

    async def within_limits(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this work, which ends if it takes too long, or is not wanted any more."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._give_up()
                self._check_times()
                began_s = time.monotonic()
                await asyncio.wait((task,), timeout=_POLL_S)
                self._waited_s += time.monotonic() - began_s
            return task.result()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise WorkFailed(f"{self._name} cannot be downloaded: {str(error) or repr(error)}") from error
        finally:
            task.cancel()
            await asyncio.wait((task,))

    def _check_times(self) -> None:
        if time.monotonic() > self._by_s:
            raise WorkFailed(f"{self._name} is not there within {self._settings.download_s:g} s (download_s)")
        has = self._response.num_bytes_downloaded if self._response is not None else 0
        if has - self._had >= _LEAST:
            self._waited_s, self._had = 0.0, has
        elif self._waited_s > self._settings.image_s:
            raise WorkFailed(
                f"{self._name} comes too slowly: {has - self._had} bytes in the last {self._settings.image_s:g} s, and {_LEAST} must "
                "come (image_s)"
            )

    async def opened(self) -> httpx.Response:
        """The answer with the content, when it begins."""
        url = httpx.URL(self._url)
        for _ in range(_REDIRECTS_MAX + 1):
            self._response = response = await self._answer(url)
            if response.has_redirect_location:
                await response.aclose()
                url = url.join(response.headers["Location"])
                continue
            if response.status_code != _OK:
                raise WorkFailed(f"{self._name}: the server answered {response.status_code}")
            if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
                # Unpacked it may be of any size.
                raise WorkFailed(f"{self._name}: the server packs it ({coding}), and was asked not to")
            self._waited_s = 0.0
            return response
        raise WorkFailed(f"{self._name}: more than {_REDIRECTS_MAX} redirects")

    async def _answer(self, url: httpx.URL) -> httpx.Response:
        addresses = await self._addresses(url)
        for number, address in enumerate(addresses, 1):
            request = httpx.Request(
                "GET",
                url.copy_with(host=address),
                headers={"Host": url.netloc.decode(), "Accept": "*/*", "Accept-Encoding": "identity"},
                extensions={
                    "sni_hostname": url.raw_host.decode(),
                    "timeout": {"connect": self._settings.image_s / len(addresses)},
                },
            )
            try:
                return await self._transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise AssertionError("a name without an address is an error")

    async def _addresses(self, url: httpx.URL) -> Sequence[str]:
        """The addresses of the URL's host that may be connected to."""
        shown = f"{url.scheme}://{url.netloc.decode()}"[:_SHOWN_MAX]
        if url.userinfo:
            raise WorkFailed(f"{self._name} leads to {shown}: a URL may not have a user or a password")
        host = url.raw_host.decode()
        servers = [each for each in self._servers if each.has(url.scheme, host, url.port)]
        if not servers or not host:
            raise WorkFailed(
                f"{self._name} leads to {shown}, which is none of the servers that the operator allows (image_servers)"
            )
        found = await _resolved(host, servers[0].port)
        allowed = [each for each in found if any(may_connect(by, each, self._networks) for by in servers)]
        if not allowed:
            raise WorkFailed(
                f"{self._name} leads to {shown}, whose address is neither public nor in a network that the operator allows (image_networks)"
            )
        return allowed


async def _next(parts: AsyncIterator[bytes]) -> bytes:
    return await anext(parts, b"")


async def _resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of a host. The event loop's own threads would have to end before the loop does, and a name server may be slow."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str] | OSError] = loop.create_future()

    def tell(answer: list[str] | OSError) -> None:
        if not found.done():
            found.set_result(answer)

    def resolve() -> None:
        try:
            answer: list[str] | OSError = [
                str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            ]
        except OSError as error:
            answer = error
        except UnicodeError as error:
            answer = OSError(f"{host!r} is no name of a host: {error}")
        with suppress(RuntimeError):
            # The loop may have ended meanwhile.
            loop.call_soon_threadsafe(tell, answer)

    threading.Thread(target=resolve, name=f"resolve {host}", daemon=True).start()
    answer = await found
    if isinstance(answer, OSError):
        raise answer
    return list(dict.fromkeys(answer))
