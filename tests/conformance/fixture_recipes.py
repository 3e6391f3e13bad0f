"""Upstream's fixtures, created through the API of the server under test.

Upstream's fixtures start a server inside the test and write to its database. Here only their recipes run, from the file
in the wheel: which providers, inventories, traits and allocations exist, and which variables name them for the steps.
Their imports are replaced: objects from here create the rows, and everything that would start a server does nothing.
"""

import ast
import os
from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final

import httpx
import os_resource_classes
import os_traits
from gabbi import fixture
from oslo_utils import uuidutils

from tests.conformance.suite_files import functional_tests

# Every role that any policy requires: the user that creates fixtures is not under test.
_HEADERS: Final = {
    "x-auth-token": "admin",
    "x-roles": "admin,service,member,reader",
    "accept": "application/json",
}
_DONE: Final = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
# The imports of upstream's file that start a server.
_SERVER = (
    "capture",
    "cfg",
    "conf",
    "config_fixture",
    "context",
    "deploy",
    "fixtures",
    "logging_error",
    "output",
    "policies",
    "policy_fixture",
    "policy_opts",
)


class PlacementCalls:
    """The few HTTP calls that create and remove fixtures on any Placement."""

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


def fixtures_by(calls: PlacementCalls) -> SimpleNamespace:
    """A module, as gabbi expects it, with the fixtures' classes by name."""
    path = functional_tests() / "fixtures" / "gabbits.py"
    tree = ast.parse(path.read_text(), path.name)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    given: dict[str, Any] = {
        "os": os,
        "fixture": fixture,
        "orc": os_resource_classes,
        "ot": os_traits,
        "uuids": _UUIDS,
        "uuidutils": uuidutils,
        "tb": _Making(calls),
        "user_obj": SimpleNamespace(User=_named),
        "project_obj": SimpleNamespace(Project=_named),
        "rc_obj": SimpleNamespace(
            ResourceClass=lambda context, name: SimpleNamespace(  # noqa: ARG005 - named by the recipes
                create=partial(calls.put, f"/resource_classes/{name}")
            )
        ),
    }
    given |= {name: _Nothing() for name in _SERVER}
    exec(compile(tree, path.name, "exec"), given)  # noqa: S102  (upstream's recipes are a program)
    return SimpleNamespace(**given)


class _SameUuids:
    """A uuid for any name, always the same for the same name."""

    def __getattr__(self, name: str) -> str:
        setattr(self, name, uuidutils.generate_uuid())
        return str(getattr(self, name))


_UUIDS = _SameUuids()


def _named(_: object, external_id: str) -> Any:
    """A user or a project: the API creates them with their first allocation."""
    return SimpleNamespace(external_id=external_id, create=lambda: None)


class _Nothing:
    """Replaces everything that would start a server: each attribute and call does nothing."""

    def __getattr__(self, name: str) -> "_Nothing":
        return self

    def __call__(self, *_: object, **__: object) -> "_Nothing":
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())


class _Provider:
    def __init__(self, calls: PlacementCalls, provider_id: str) -> None:
        self._calls = calls
        self.uuid = provider_id

    def set_aggregates(self, aggregates: tuple[str, ...]) -> None:
        # Upstream writes aggregates without the API, so no generation changes. The first version with aggregates does
        # the same.
        self._calls.put(f"/resource_providers/{self.uuid}/aggregates", list(aggregates), "1.1")


class _Making:
    """The functions that create rows, under the names that the recipes use."""

    def __init__(self, calls: PlacementCalls) -> None:
        self._calls = calls

    def create_provider(
        self, _: object, name: str, *aggregates: str, uuid: str = "", parent: str = ""
    ) -> _Provider:
        provider = _Provider(self._calls, uuid or getattr(_UUIDS, name))
        body = {"name": name, "uuid": provider.uuid, **({"parent_provider_uuid": parent} if parent else {})}
        self._calls.post("/resource_providers", body)
        if aggregates:
            provider.set_aggregates(aggregates)
        return provider

    def add_inventory(self, provider: _Provider, resource: str, total: int, **limits: float) -> None:
        if resource.startswith("CUSTOM_"):
            self._calls.put(f"/resource_classes/{resource}")
        body = {"max_unit": total, **limits, "resource_class": resource, "total": total}
        body["resource_provider_generation"] = self._calls.generation(provider.uuid)
        self._calls.post(f"/resource_providers/{provider.uuid}/inventories", body)

    def set_traits(self, provider: _Provider, *traits: str) -> None:
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self._calls.put(f"/traits/{trait}")
        body = {"traits": list(traits), "resource_provider_generation": self._calls.generation(provider.uuid)}
        self._calls.put(f"/resource_providers/{provider.uuid}/traits", body)

    def create_user_and_project(self, _: object, prefix: str = "fake") -> tuple[Any, Any]:
        return _named(None, f"{prefix}-user"), _named(None, f"{prefix}-project")

    def ensure_consumer(self, _: object, user: object, project: object, consumer_id: str = "") -> object:
        return SimpleNamespace(uuid=consumer_id or uuidutils.generate_uuid(), user=user, project=project)

    def set_allocation(self, _: object, provider: _Provider, consumer: Any, used: Mapping[str, int]) -> None:
        body = {
            "allocations": {provider.uuid: {"resources": dict(used)}},
            "consumer_generation": None,
            "user_id": consumer.user.external_id,
            "project_id": consumer.project.external_id,
        }
        # The last version in which a consumer has no type: upstream's consumers have none.
        self._calls.put(f"/allocations/{consumer.uuid}", body, "1.37")
