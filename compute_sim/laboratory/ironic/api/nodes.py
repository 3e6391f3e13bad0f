"""The endpoints below /v1/nodes: those that Moorage calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from compute_sim.laboratory.ironic.api.answers import ACCEPTED, NO_CONTENT, OK, ApiAnswer, ApiRequest
from compute_sim.laboratory.ironic.api.listing import page_of
from compute_sim.laboratory.ironic.api.rendering import SHORT_FIELDS, asked_fields, node_shown
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.orders import ProvisionOrder
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, RequestRefused
from compute_sim.laboratory.ironic.simulated import SimulatedIronic

Endpoint = Callable[[SimulatedIronic, ApiRequest], ApiAnswer]


# The bodies of requests


class PowerOrder(Struct, frozen=True, forbid_unknown_fields=True):
    target: str


class ConsoleOrder(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool


class MaintenanceOrder(Struct, frozen=True, forbid_unknown_fields=True):
    reason: str | None = None


class TraitsOrder(Struct, frozen=True, forbid_unknown_fields=True):
    traits: tuple[str, ...]


class VifOrder(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1)]


# Reading


def list_nodes(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    return _listed(ironic, asked, _fields(asked) or SHORT_FIELDS, "nodes")


def list_in_detail(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    if "fields" in asked.query:
        raise RequestRefused(BAD_REQUEST, "Unexpected argument: fields")
    return _listed(ironic, asked, None, "nodes/detail")


def _listed(ironic: SimulatedIronic, asked: ApiRequest, fields: Sequence[str] | None, path: str) -> ApiAnswer:
    ironic.advance()
    page = page_of(ironic.nodes, asked.query)
    body: dict[str, Any] = {"nodes": [_shown(ironic, node, asked, fields) for node in page.nodes]}
    if page.next_query:
        body["next"] = f"{asked.base}/v1/{path}?{page.next_query}"
    return ApiAnswer(OK, body)


def show(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    return ApiAnswer(OK, _shown(ironic, ironic.known(asked.node), asked, _fields(asked)))


def validate(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    reasons = ironic.why_not_deployable(asked.node)
    return ApiAnswer(
        OK,
        {
            name: {"result": False, "reason": reason} if reason else {"result": True}
            for name, reason in reasons.items()
        },
    )


def show_console(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    node = ironic.known(asked.node)
    is_on = bool(node.console_enabled)
    info = {"type": "shellinabox", "url": f"http://console.invalid/{node.uuid}"} if is_on else None
    return ApiAnswer(OK, {"console_enabled": is_on, "console_info": info})


def list_vifs(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    return ApiAnswer(OK, {"vifs": [{"id": vif} for vif in ironic.known(asked.node).vifs]})


# Writing


def patch(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    node = ironic.patch(asked.node, asked.body, asked.minor)
    return ApiAnswer(OK, _shown(ironic, node, asked, None))


def provision(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.provision(asked.node, asked.body_as(ProvisionOrder), asked.minor)
    return ApiAnswer(ACCEPTED)


def set_power(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.set_power(asked.node, asked.body_as(PowerOrder).target)
    return ApiAnswer(ACCEPTED)


def set_console(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.set_console(asked.node, is_on=asked.body_as(ConsoleOrder).enabled)
    return ApiAnswer(ACCEPTED)


def begin_maintenance(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.set_maintenance(asked.node, is_on=True, reason=asked.body_as(MaintenanceOrder).reason)
    return ApiAnswer(ACCEPTED)


def end_maintenance(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.set_maintenance(asked.node, is_on=False)
    return ApiAnswer(ACCEPTED)


def set_traits(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.set_traits(asked.node, asked.body_as(TraitsOrder).traits)
    return ApiAnswer(NO_CONTENT)


def attach_vif(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.attach_vif(asked.node, asked.body_as(VifOrder).id)
    return ApiAnswer(NO_CONTENT)


def detach_vif(ironic: SimulatedIronic, asked: ApiRequest) -> ApiAnswer:
    ironic.detach_vif(asked.node, asked.path["vif"])
    return ApiAnswer(NO_CONTENT)


ENDPOINTS: Mapping[str, Mapping[str, Endpoint]] = {
    "/v1/nodes": {"GET": list_nodes},
    "/v1/nodes/detail": {"GET": list_in_detail},
    "/v1/nodes/{node}": {"GET": show, "PATCH": patch},
    "/v1/nodes/{node}/validate": {"GET": validate},
    "/v1/nodes/{node}/states/provision": {"PUT": provision},
    "/v1/nodes/{node}/states/power": {"PUT": set_power},
    "/v1/nodes/{node}/states/console": {"GET": show_console, "PUT": set_console},
    "/v1/nodes/{node}/maintenance": {"PUT": begin_maintenance, "DELETE": end_maintenance},
    "/v1/nodes/{node}/traits": {"PUT": set_traits},
    "/v1/nodes/{node}/vifs": {"GET": list_vifs, "POST": attach_vif},
    "/v1/nodes/{node}/vifs/{vif}": {"DELETE": detach_vif},
}


def _fields(asked: ApiRequest) -> tuple[str, ...] | None:
    return asked_fields(asked.query["fields"], asked.minor) if "fields" in asked.query else None


def _shown(
    ironic: SimulatedIronic, node: SimulatedNode, asked: ApiRequest, fields: Sequence[str] | None
) -> dict[str, Any]:
    return node_shown(node, asked.minor, fields, ironic.settings.host)
