"""The real openstack-placement in a process of its own, over HTTP, and the requests that it is asked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx
from msgspec import Struct

NEWEST = "1.39"
ADMIN = ("x-auth-token", "admin")
JSON = ("content-type", "application/json")
Headers = tuple[tuple[str, str], ...]


class Asked(Struct, frozen=True):
    method: str
    target: str
    headers: Headers = ()
    body: str | None = None

    def at(self, url: str) -> httpx.Request:
        """With exactly these headers."""
        content = None if self.body is None else self.body.encode()
        return httpx.Request(self.method, f"{url}{self.target}", headers=list(self.headers), content=content)


def ask(
    method: str,
    target: str,
    body: object = None,
    *more: tuple[str, str],
    version: str = NEWEST,
    who: Headers = (ADMIN,),
) -> Asked:
    text = body if isinstance(body, str) or body is None else json.dumps(body)
    media = () if body is None or any(name == "content-type" for name, _ in more) else (JSON,)
    return Asked(
        method, target, (*who, ("openstack-api-version", f"placement {version}"), *media, *more), text
    )


def media_of(answer: httpx.Response) -> str:
    return str(answer.headers.get("content-type", "")).partition(";")[0]


class Upstream:
    """Its books are empty at first, and after `wipe`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.conformance.upstream_requests"),
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self._client = httpx.Client(timeout=60, trust_env=False)

    def ask(self, *asked: Asked) -> list[httpx.Response]:
        return [self._client.send(each.at(self.url)) for each in asked]

    def wipe(self) -> None:
        self.ask(Asked("DELETE", "/books"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.terminate()
        # It closes the pipe, and waits.
        self._process.__exit__(None, None, None)
