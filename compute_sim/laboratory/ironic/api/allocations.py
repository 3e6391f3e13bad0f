"""The endpoints below /v1/allocations."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from compute_sim.laboratory.ironic.api.answers import CREATED, NO_CONTENT, OK, ApiAnswer, ApiRequest
from compute_sim.laboratory.ironic.api.rendering import allocation_shown
from compute_sim.laboratory.ironic.core.allocations import Allocation
from compute_sim.laboratory.ironic.core.changes import is_uuid
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, NOT_FOUND, RequestRefused
from compute_sim.laboratory.ironic.simulated import SimulatedIronic

_PATCH_MINOR = 57
_KEYS = frozenset({"uuid", "name", "resource_class", "traits", "candidate_nodes", "extra", "owner"})


class AllocationsApi:
    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic

    def index(self, asked: ApiRequest) -> ApiAnswer:
        self._ironic.advance()
        tests = {
            key: value for key, value in asked.query.items() if key in ("resource_class", "state", "owner")
        }
        found = [
            allocation_shown(each, asked.minor, asked.base)
            for each in self._ironic.allocations.values()
            if all(getattr(each, key) == value for key, value in tests.items())
        ]
        return ApiAnswer(OK, {"allocations": found})

    def create(self, asked: ApiRequest) -> ApiAnswer:
        created = self._ironic.allocate(self._read(asked.body))
        return ApiAnswer(
            CREATED, allocation_shown(created, asked.minor, asked.base), f"allocations/{created.uuid}"
        )

    def show(self, asked: ApiRequest) -> ApiAnswer:
        ident = self._ident(asked)
        allocation = self._ironic.allocation(ident)
        if allocation is None:
            raise RequestRefused(NOT_FOUND, f"Allocation {ident} does not exist.")
        return ApiAnswer(OK, allocation_shown(allocation, asked.minor, asked.base))

    def patch(self, asked: ApiRequest) -> ApiAnswer:
        if asked.minor < _PATCH_MINOR:
            raise RequestRefused(405, f"Allocations are patched from API version 1.{_PATCH_MINOR} on.")
        changed = self._ironic.patch_allocation(self._ident(asked), asked.body)
        return ApiAnswer(OK, allocation_shown(changed, asked.minor, asked.base))

    def delete(self, asked: ApiRequest) -> ApiAnswer:
        self._ironic.deallocate(self._ident(asked))
        return ApiAnswer(NO_CONTENT)

    def _ident(self, asked: ApiRequest) -> str:
        """The id of the allocation that the URL names, directly or by its node."""
        if "allocation" in asked.path:
            return asked.path["allocation"]
        node = self._ironic.known(asked.path["node"])
        if node.allocation_uuid is None:
            raise RequestRefused(NOT_FOUND, f"Node {node.uuid} has no allocation.")
        return node.allocation_uuid

    def _read(self, body: Any) -> Allocation:
        if not isinstance(body, Mapping):
            raise RequestRefused(BAD_REQUEST, "The body must be an object: an allocation.")
        if unknown := sorted({*body} - _KEYS):
            raise RequestRefused(BAD_REQUEST, f"An allocation has no field {unknown[0]!r} that can be set.")
        if not isinstance(body.get("resource_class"), str):
            raise RequestRefused(BAD_REQUEST, "resource_class is missing: an allocation needs one.")
        uuid = body.get("uuid") or str(uuid4())
        if not isinstance(uuid, str) or not is_uuid(uuid):
            raise RequestRefused(BAD_REQUEST, f"Expected UUID for uuid: {uuid}")
        candidates = []
        for ident in body.get("candidate_nodes") or ():
            node = self._ironic.node(ident) if isinstance(ident, str) else None
            if node is None:
                raise RequestRefused(BAD_REQUEST, f"Node {ident} does not exist.")
            candidates.append(node.uuid)
        return Allocation(
            uuid=uuid,
            name=body.get("name"),
            owner=body.get("owner"),
            resource_class=body["resource_class"],
            traits=tuple(body["traits"]) if body.get("traits") else None,
            candidate_nodes=tuple(candidates) or None,
            extra=body.get("extra") or {},
        )
