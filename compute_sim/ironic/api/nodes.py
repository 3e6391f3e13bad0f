"""The endpoints below /v1/nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from compute_sim.ironic.api.answers import ACCEPTED, CREATED, NO_CONTENT, OK, Answer, ApiRequest
from compute_sim.ironic.api.listing import page_of, read_query
from compute_sim.ironic.api.rendering import SHORT_FIELDS, asked_fields, node_shown, states_shown
from compute_sim.ironic.core.node import Node
from compute_sim.ironic.core.orders import ProvisionOrder
from compute_sim.ironic.core.refusals import BAD_REQUEST, NOT_ACCEPTABLE, NOT_FOUND, Refused, no_such_node
from compute_sim.ironic.simulated import SimulatedIronic

_TRAITS_MINOR = 37
_VIFS_MINOR = 28
_FIELDS_MINOR = 8
_PROVISION_KEYS = frozenset(ProvisionOrder.__struct_fields__)


class NodesApi:
    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic

    # Reading

    def index(self, asked: ApiRequest) -> Answer | Refused:
        fields: Sequence[str] | Refused | None = SHORT_FIELDS
        if "fields" in asked.query:
            if asked.minor < _FIELDS_MINOR:
                return Refused(NOT_ACCEPTABLE, f"fields needs API version 1.{_FIELDS_MINOR}.")
            if asked.query.get("detail", "false").lower() in ("true", "1", "yes"):
                return Refused(BAD_REQUEST, "Either fields or detail can be asked for, not both.")
            fields = asked_fields(asked.query["fields"], asked.minor)
        return fields if isinstance(fields, Refused) else self._listed(asked, fields, "nodes")

    def detail(self, asked: ApiRequest) -> Answer | Refused:
        if "fields" in asked.query:
            return Refused(BAD_REQUEST, "Unexpected argument: fields")
        return self._listed(asked, None, "nodes/detail")

    def _listed(self, asked: ApiRequest, fields: Sequence[str] | None, path: str) -> Answer | Refused:
        settings = self._ironic.settings
        query = read_query(asked.query, asked.minor, settings.page_max, settings.host)
        if isinstance(query, Refused):
            return query
        self._ironic.advance()
        page = page_of(self._ironic.nodes, query)
        if isinstance(page, Refused):
            return page
        shown = None if query.is_detailed else fields
        body: dict[str, Any] = {"nodes": [self._shown(node, asked, shown) for node in page.nodes]}
        if page.next_query:
            # The link also names fields that are shown without being asked for.
            named = shown is not None and "fields" not in asked.query
            chosen = f"fields={','.join(shown or ())}&" if named else ""
            body["next"] = f"{asked.base}/v1/{path}?{chosen}{page.next_query}"
        return Answer(OK, body)

    def show(self, asked: ApiRequest) -> Answer | Refused:
        node = self._node(asked)
        if isinstance(node, Refused):
            return node
        if "fields" not in asked.query:
            return Answer(OK, self._shown(node, asked, None))
        fields = asked_fields(asked.query["fields"], asked.minor)
        return fields if isinstance(fields, Refused) else Answer(OK, self._shown(node, asked, fields))

    def states(self, asked: ApiRequest) -> Answer | Refused:
        node = self._node(asked)
        if isinstance(node, Refused):
            return node
        return Answer(OK, states_shown(node, asked.minor, self._ironic.settings.host))

    def validate(self, asked: ApiRequest) -> Answer | Refused:
        reasons = self._ironic.why_not_deployable(asked.path["node"])
        if isinstance(reasons, Refused):
            return reasons
        return Answer(
            OK,
            {
                name: {"result": False, "reason": reason} if reason else {"result": True}
                for name, reason in reasons.items()
            },
        )

    # Writing

    def create(self, asked: ApiRequest) -> Answer | Refused:
        if not isinstance(asked.body, Mapping):
            return Refused(BAD_REQUEST, "The body must be an object: a node.")
        node = self._ironic.create(asked.body, asked.minor)
        if isinstance(node, Refused):
            return node
        return Answer(CREATED, self._shown(node, asked, None), f"nodes/{node.uuid}")

    def patch(self, asked: ApiRequest) -> Answer | Refused:
        node = self._ironic.patch(asked.path["node"], asked.body, asked.minor)
        return node if isinstance(node, Refused) else Answer(OK, self._shown(node, asked, None))

    def delete(self, asked: ApiRequest) -> Answer | Refused:
        return _done(self._ironic.delete(asked.path["node"]), Answer(NO_CONTENT))

    def provision(self, asked: ApiRequest) -> Answer | Refused:
        body = asked.body
        if not isinstance(body, Mapping) or not isinstance(body.get("target"), str):
            return Refused(BAD_REQUEST, "target is missing: it names a provision state or a verb.")
        unknown = sorted({*body} - _PROVISION_KEYS)
        if unknown:
            return Refused(BAD_REQUEST, f"Unexpected argument: {unknown[0]}")
        try:
            order = msgspec.convert(
                {key: value for key, value in body.items() if value is not None}, ProvisionOrder
            )
        except msgspec.ValidationError as problem:
            return Refused(BAD_REQUEST, str(problem))
        ident = asked.path["node"]
        return _done(
            self._ironic.provision(ident, order, asked.minor),
            Answer(ACCEPTED, location=f"nodes/{ident}/states"),
        )

    def power(self, asked: ApiRequest) -> Answer | Refused:
        body = asked.body
        if not isinstance(body, Mapping) or not isinstance(body.get("target"), str):
            return Refused(BAD_REQUEST, "target is missing: it names a power state.")
        ident = asked.path["node"]
        return _done(
            self._ironic.set_power(ident, body["target"]),
            Answer(ACCEPTED, location=f"nodes/{ident}/states"),
        )

    def maintenance_on(self, asked: ApiRequest) -> Answer | Refused:
        reason = asked.body.get("reason") if isinstance(asked.body, Mapping) else None
        reason = reason if reason is not None else asked.query.get("reason")
        if reason is not None and not isinstance(reason, str):
            return Refused(BAD_REQUEST, f"reason is {reason!r}, must be a text.")
        ident = asked.path["node"]
        return _done(self._ironic.set_maintenance(ident, is_on=True, reason=reason), Answer(ACCEPTED))

    def maintenance_off(self, asked: ApiRequest) -> Answer | Refused:
        return _done(self._ironic.set_maintenance(asked.path["node"], is_on=False), Answer(ACCEPTED))

    # Traits and VIFs

    def traits(self, asked: ApiRequest) -> Answer | Refused:
        node = self._node_since(asked, _TRAITS_MINOR)
        return node if isinstance(node, Refused) else Answer(OK, {"traits": list(node.traits)})

    def set_traits(self, asked: ApiRequest) -> Answer | Refused:
        body = asked.body
        traits = body.get("traits") if isinstance(body, Mapping) and {*body} == {"traits"} else None
        if not isinstance(traits, list) or not all(isinstance(each, str) for each in traits):
            return Refused(BAD_REQUEST, 'The body must be {"traits": [...]}.')
        return self._traits_written(asked, self._ironic.set_traits, traits)

    def add_trait(self, asked: ApiRequest) -> Answer | Refused:
        if asked.body:
            return Refused(BAD_REQUEST, "A single trait is added without a body.")
        node = self._node_since(asked, _TRAITS_MINOR)
        if isinstance(node, Refused):
            return node
        ident, trait = asked.path["node"], asked.path["trait"]
        answer = Answer(NO_CONTENT, location=f"nodes/{ident}/traits/{trait}")
        return _done(self._ironic.set_traits(ident, [trait], replaces=False), answer)

    def remove_traits(self, asked: ApiRequest) -> Answer | Refused:
        return self._traits_written(asked, self._ironic.remove_traits)

    def remove_trait(self, asked: ApiRequest) -> Answer | Refused:
        return self._traits_written(asked, self._ironic.remove_traits, asked.path["trait"])

    def _traits_written(self, asked: ApiRequest, write: Any, *values: Any) -> Answer | Refused:
        node = self._node_since(asked, _TRAITS_MINOR)
        if isinstance(node, Refused):
            return node
        return _done(write(asked.path["node"], *values), Answer(NO_CONTENT))

    def vifs(self, asked: ApiRequest) -> Answer | Refused:
        node = self._node_since(asked, _VIFS_MINOR)
        return node if isinstance(node, Refused) else Answer(OK, {"vifs": [{"id": vif} for vif in node.vifs]})

    def attach_vif(self, asked: ApiRequest) -> Answer | Refused:
        node = self._node_since(asked, _VIFS_MINOR)
        if isinstance(node, Refused):
            return node
        vif = asked.body.get("id") if isinstance(asked.body, Mapping) else None
        if not isinstance(vif, str) or not vif:
            return Refused(BAD_REQUEST, 'The body must be {"id": VIF}.')
        return _done(self._ironic.attach_vif(asked.path["node"], vif), Answer(NO_CONTENT))

    def detach_vif(self, asked: ApiRequest) -> Answer | Refused:
        node = self._node_since(asked, _VIFS_MINOR)
        if isinstance(node, Refused):
            return node
        return _done(self._ironic.detach_vif(asked.path["node"], asked.path["vif"]), Answer(NO_CONTENT))

    # Inside

    def _node(self, asked: ApiRequest) -> Node | Refused:
        ident = asked.path["node"]
        return self._ironic.node(ident) or no_such_node(ident)

    def _node_since(self, asked: ApiRequest, minor: int) -> Node | Refused:
        """The node, if the microversion has this subresource."""
        if asked.minor < minor:
            return Refused(NOT_FOUND, f"This is not there before API version 1.{minor}.")
        return self._node(asked)

    def _shown(self, node: Node, asked: ApiRequest, fields: Sequence[str] | None) -> dict[str, Any]:
        return node_shown(node, asked.minor, fields, asked.base, self._ironic.settings.host)


def _done(result: Node | Refused, answer: Answer) -> Answer | Refused:
    return result if isinstance(result, Refused) else answer
