"""Upstream's fixtures, created through the API of the server under test.

Upstream's fixtures start a server inside the test and write to its database. Here only their recipes run, from the file
in the wheel: which providers, inventories, traits and allocations exist, and which variables name them for the steps.
Their imports are replaced: objects from here create the rows, and everything that would start a server does nothing.
"""

import ast
import os
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import os_resource_classes
import os_traits
from gabbi import fixture
from oslo_utils import uuidutils

from tests.conformance.placement_calls import PlacementCalls
from tests.conformance.suite_files import functional_tests

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
        generation = self._calls.generation(provider.uuid)
        body = {"traits": list(traits), "resource_provider_generation": generation}
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
