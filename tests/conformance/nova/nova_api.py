"""A small client of Nova's compute API, as an administrator."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import httpx

from tests.waiting import wait_for

# All that 2026's Nova has. `networks` must be said from 2.37 on.
MICROVERSION = "2.96"
ANSWERS_WITHIN_S = 120.0
ENDS_WITHIN_S = 90.0
# So many servers the API lists at once.
PAGE = 1000
# With a token, header_identity.py makes the caller the operator.
_HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": f"compute {MICROVERSION}"}


class NovaRefusedError(RuntimeError):
    """Nova answered with an error; the message has its status and words."""


class NovaApi:
    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, headers=_HEADERS, timeout=ANSWERS_WITHIN_S)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self._client.request(method, f"{self.url}{path}", json=body)
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            raise NovaRefusedError(f"{method} {path}: {answer.status_code} {answer.text[:400]}")
        return answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else None

    def flavor(
        self, name: str, vcpus: int, ram_mb: int, root_gb: int, extra_specs: Mapping[str, str] = {}
    ) -> str:
        made = {"name": name, "id": name, "vcpus": vcpus, "ram": ram_mb, "disk": root_gb}
        self.ask("POST", "/flavors", {"flavor": made})
        if extra_specs:
            self.ask("POST", f"/flavors/{name}/os-extra_specs", {"extra_specs": extra_specs})
        return name

    def boot(
        self, name: str, flavor: str, image: str, *, hints: Mapping[str, object] | None = None, **more: Any
    ) -> Any:
        """Returns the answer: the server, or the reservation."""
        server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": "none", **more}
        hinted = {"OS-SCH-HNT:scheduler_hints": hints} if hints else {}
        return self.ask("POST", "/servers", {"server": server, **hinted})

    def act(self, server: str, action: str, value: object = None) -> Any:
        return self.ask("POST", f"/servers/{server}/action", {action: value})

    def server(self, server: str) -> Any:
        return self.ask("GET", f"/servers/{server}")["server"]

    def servers(self, **query: str) -> list[Any]:
        wanted = urlencode({"all_tenants": "1", **query})
        page = found = self.ask("GET", f"/servers/detail?{wanted}")["servers"]
        while len(page) == PAGE:
            page = self.ask("GET", f"/servers/detail?{wanted}&marker={page[-1]['id']}")["servers"]
            found = [*found, *page]
        return list(found)

    def services(self) -> list[Any]:
        return list(self.ask("GET", "/os-services")["services"])

    def service_of(self, host: str) -> Any:
        return next(
            each for each in self.services() if each["host"] == host and each["binary"] == "nova-compute"
        )

    def until(self, server: str, *statuses: str, within_s: float = ENDS_WITHIN_S) -> Any:
        """Wait until the server has one of these states and no task; an error ends the wait, too."""
        return self.until_true(
            lambda: self._settled(server, statuses), f"server {server} is {' or '.join(statuses)}", within_s
        )

    def _settled(self, server: str, statuses: tuple[str, ...]) -> Any:
        found = self.server(server)
        is_settled = found["OS-EXT-STS:task_state"] is None
        return found if is_settled and found["status"] in (*statuses, "ERROR") else None

    def until_gone(self, server: str, within_s: float = ENDS_WITHIN_S) -> None:
        def is_gone() -> bool:
            try:
                self.server(server)
            except NovaRefusedError as refused:
                return ": 404 " in str(refused)
            return False

        self.until_true(is_gone, f"server {server} is gone", within_s)

    def until_true(self, asked: Callable[[], Any], what: str, within_s: float = ENDS_WITHIN_S) -> Any:
        return wait_for(asked, what, within_s=within_s)
