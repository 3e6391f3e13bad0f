"""The few HTTP calls that create and remove fixtures on any Placement."""

from http import HTTPStatus
from typing import Any, Final

import httpx

# Every role that any policy requires: the user that creates fixtures is not under test.
_HEADERS: Final = {
    "x-auth-token": "admin",
    "x-roles": "admin,service,member,reader",
    "accept": "application/json",
}
_DONE: Final = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)


class PlacementCalls:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, headers=_HEADERS, timeout=60, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        return self._call("GET", path).json()

    def post(self, path: str, body: object) -> None:
        self._call("POST", path, body)

    def put(self, path: str, body: object = None, version: str = "1.39") -> None:
        self._call("PUT", path, body, version)

    def generation(self, provider: str) -> int:
        return int(self.get(f"/resource_providers/{provider}")["generation"])

    def forget_everything(self) -> None:
        """Restore the state of a new server: no provider, no consumer, no custom name."""
        while providers := self.get("/resource_providers")["resource_providers"]:
            parents = {each["parent_provider_uuid"] for each in providers}
            for leaf in sorted({each["uuid"] for each in providers} - parents):
                for consumer in self.get(f"/resource_providers/{leaf}/allocations")["allocations"]:
                    self._call("DELETE", f"/allocations/{consumer}")
                self._call("DELETE", f"/resource_providers/{leaf}")
        for trait in self.get("/traits?name=startswith:CUSTOM_")["traits"]:
            self._call("DELETE", f"/traits/{trait}")
        for known in self.get("/resource_classes")["resource_classes"]:
            if known["name"].startswith("CUSTOM_"):
                self._call("DELETE", f"/resource_classes/{known['name']}")

    def _call(self, method: str, path: str, body: object = None, version: str = "1.39") -> httpx.Response:
        answer = self._client.request(
            method, path, json=body, headers={"openstack-api-version": f"placement {version}"}
        )
        assert answer.status_code in _DONE, f"{method} {path} {body!r}: {answer.status_code} {answer.text}"
        return answer
