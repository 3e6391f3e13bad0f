"""The endpoints below /v1/nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from compute_sim.laboratory.ironic.api.answers import ACCEPTED, CREATED, NO_CONTENT, OK, ApiAnswer, ApiRequest
from compute_sim.laboratory.ironic.api.listing import page_of
from compute_sim.laboratory.ironic.api.rendering import SHORT_FIELDS, asked_fields, node_shown, states_shown
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.orders import ProvisionOrder
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, NOT_ACCEPTABLE, RequestRefused
from compute_sim.laboratory.ironic.simulated import SimulatedIronic

_FIELDS_MINOR = 8
_PROVISION_KEYS = frozenset(ProvisionOrder.__struct_fields__)


class NodesApi:
    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic

    # Reading

    def index(self, asked: ApiRequest) -> ApiAnswer:
        fields: Sequence[str] = SHORT_FIELDS
        if "fields" in asked.query:
            if asked.minor < _FIELDS_MINOR:
                raise RequestRefused(NOT_ACCEPTABLE, f"fields needs API version 1.{_FIELDS_MINOR}.")
            if asked.query.get("detail", "false").lower() in ("true", "1", "yes"):
                raise RequestRefused(BAD_REQUEST, "Either fields or detail can be asked for, not both.")
            fields = asked_fields(asked.query["fields"], asked.minor)
        return self._listed(asked, fields, "nodes")

    def detail(self, asked: ApiRequest) -> ApiAnswer:
        if "fields" in asked.query:
            raise RequestRefused(BAD_REQUEST, "Unexpected argument: fields")
        return self._listed(asked, None, "nodes/detail")

    def _listed(self, asked: ApiRequest, fields: Sequence[str] | None, path: str) -> ApiAnswer:
        self._ironic.advance()
        page = page_of(self._ironic.nodes, asked.query, asked.minor, self._ironic.settings.host)
        shown = None if page.is_detailed else fields
        body: dict[str, Any] = {"nodes": [self._shown(node, asked, shown) for node in page.nodes]}
        if page.next_query:
            # The link also names fields that are shown without being asked for.
            named = shown is not None and "fields" not in asked.query
            chosen = f"fields={','.join(shown or ())}&" if named else ""
            body["next"] = f"{asked.base}/v1/{path}?{chosen}{page.next_query}"
        return ApiAnswer(OK, body)

    def show(self, asked: ApiRequest) -> ApiAnswer:
        node = self._node(asked)
        fields = asked_fields(asked.query["fields"], asked.minor) if "fields" in asked.query else None
        return ApiAnswer(OK, self._shown(node, asked, fields))

    def states(self, asked: ApiRequest) -> ApiAnswer:
        return ApiAnswer(OK, states_shown(self._node(asked), asked.minor, self._ironic.settings.host))

    def validate(self, asked: ApiRequest) -> ApiAnswer:
        reasons = self._ironic.why_not_deployable(asked.path["node"])
        return ApiAnswer(
            OK,
            {
                name: {"result": False, "reason": reason} if reason else {"result": True}
                for name, reason in reasons.items()
            },
        )

    # Writing

    def create(self, asked: ApiRequest) -> ApiAnswer:
        node = self._ironic.create(_object(asked, "The body must be an object: a node."), asked.minor)
        return ApiAnswer(CREATED, self._shown(node, asked, None), f"nodes/{node.uuid}")

    def patch(self, asked: ApiRequest) -> ApiAnswer:
        node = self._ironic.patch(asked.path["node"], asked.body, asked.minor)
        return ApiAnswer(OK, self._shown(node, asked, None))

    def delete(self, asked: ApiRequest) -> ApiAnswer:
        self._ironic.delete(asked.path["node"])
        return ApiAnswer(NO_CONTENT)

    def provision(self, asked: ApiRequest) -> ApiAnswer:
        wrong = "target is missing: it names a provision state or a verb."
        body, ident = _object(asked, wrong), asked.path["node"]
        if not isinstance(body.get("target"), str):
            raise RequestRefused(BAD_REQUEST, wrong)
        if unknown := sorted({*body} - _PROVISION_KEYS):
            raise RequestRefused(BAD_REQUEST, f"Unexpected argument: {unknown[0]}")
        given = {key: value for key, value in body.items() if value is not None}
        try:
            order = msgspec.convert(given, ProvisionOrder)
        except msgspec.ValidationError as problem:
            raise RequestRefused(BAD_REQUEST, str(problem)) from None
        self._ironic.provision(ident, order, asked.minor)
        return ApiAnswer(ACCEPTED, location=f"nodes/{ident}/states")

    def power(self, asked: ApiRequest) -> ApiAnswer:
        ident = asked.path["node"]
        self._ironic.set_power(ident, _text(asked, "target", "target is missing: it names a power state."))
        return ApiAnswer(ACCEPTED, location=f"nodes/{ident}/states")

    def console(self, asked: ApiRequest) -> ApiAnswer:
        node = self._node(asked)
        is_on = bool(node.console_enabled)
        info = {"type": "shellinabox", "url": f"http://console.invalid/{node.uuid}"} if is_on else None
        return ApiAnswer(OK, {"console_enabled": is_on, "console_info": info})

    def set_console(self, asked: ApiRequest) -> ApiAnswer:
        enabled = asked.body.get("enabled") if isinstance(asked.body, Mapping) else None
        if not isinstance(enabled, bool):
            raise RequestRefused(BAD_REQUEST, "enabled is missing: it must be true or false.")
        self._ironic.set_console(self._node(asked).uuid, is_on=enabled)
        return ApiAnswer(ACCEPTED)

    def maintenance_on(self, asked: ApiRequest) -> ApiAnswer:
        reason = asked.body.get("reason") if isinstance(asked.body, Mapping) else None
        reason = reason if reason is not None else asked.query.get("reason")
        if reason is not None and not isinstance(reason, str):
            raise RequestRefused(BAD_REQUEST, f"reason is {reason!r}, must be a text.")
        self._ironic.set_maintenance(asked.path["node"], is_on=True, reason=reason)
        return ApiAnswer(ACCEPTED)

    def maintenance_off(self, asked: ApiRequest) -> ApiAnswer:
        self._ironic.set_maintenance(asked.path["node"], is_on=False)
        return ApiAnswer(ACCEPTED)

    # Traits and VIFs

    def traits(self, asked: ApiRequest) -> ApiAnswer:
        return ApiAnswer(OK, {"traits": list(self._node(asked).traits)})

    def set_traits(self, asked: ApiRequest) -> ApiAnswer:
        body = asked.body
        traits = body.get("traits") if isinstance(body, Mapping) and {*body} == {"traits"} else None
        if not isinstance(traits, list) or not all(isinstance(each, str) for each in traits):
            raise RequestRefused(BAD_REQUEST, 'The body must be {"traits": [...]}.')
        self._ironic.set_traits(self._node(asked).uuid, traits)
        return ApiAnswer(NO_CONTENT)

    def add_trait(self, asked: ApiRequest) -> ApiAnswer:
        if asked.body:
            raise RequestRefused(BAD_REQUEST, "A single trait is added without a body.")
        trait = asked.path["trait"]
        self._ironic.set_traits(self._node(asked).uuid, [trait], replaces=False)
        return ApiAnswer(NO_CONTENT, location=f"nodes/{asked.path['node']}/traits/{trait}")

    def remove_traits(self, asked: ApiRequest) -> ApiAnswer:
        """Remove one trait of a node, if the URL names one; otherwise all."""
        self._ironic.remove_traits(self._node(asked).uuid, asked.path.get("trait"))
        return ApiAnswer(NO_CONTENT)

    def vifs(self, asked: ApiRequest) -> ApiAnswer:
        node = self._node(asked)
        return ApiAnswer(OK, {"vifs": [{"id": vif} for vif in node.vifs]})

    def attach_vif(self, asked: ApiRequest) -> ApiAnswer:
        node = self._node(asked)
        self._ironic.attach_vif(node.uuid, _text(asked, "id", 'The body must be {"id": VIF}.'))
        return ApiAnswer(NO_CONTENT)

    def detach_vif(self, asked: ApiRequest) -> ApiAnswer:
        self._ironic.detach_vif(self._node(asked).uuid, asked.path["vif"])
        return ApiAnswer(NO_CONTENT)

    # Inside

    def _node(self, asked: ApiRequest) -> SimulatedNode:
        return self._ironic.known(asked.path["node"])

    def _shown(self, node: SimulatedNode, asked: ApiRequest, fields: Sequence[str] | None) -> dict[str, Any]:
        return node_shown(node, asked.minor, fields, asked.base, self._ironic.settings.host)


def _object(asked: ApiRequest, wrong: str) -> Mapping[str, Any]:
    """The body of the request; refuses a body that is not an object."""
    if not isinstance(asked.body, Mapping):
        raise RequestRefused(BAD_REQUEST, wrong)
    return asked.body


def _text(asked: ApiRequest, field: str, wrong: str) -> str:
    """A field of the request's body; raise RequestRefused if it is not a text, or empty."""
    text = _object(asked, wrong).get(field)
    if not isinstance(text, str) or not text:
        raise RequestRefused(BAD_REQUEST, wrong)
    return text
