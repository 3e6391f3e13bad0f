"""A stand-in for Neutron: networks, subnets and ports with their bindings, in memory, by the requests that Nova makes.

A port is bound by every host that asks. What a port wants of placement (`resource_request`) is as its creator says it; Neutron makes
it of QoS policies. It imports only the standard library.
"""

import ipaddress
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

Row = dict[str, Any]
Answer = tuple[int, Any]
Query = Mapping[str, Sequence[str]]
SINGULAR = {"networks": "network", "subnets": "subnet", "ports": "port"}
EXTENSIONS = ("binding", "binding-extended", "port-resource-request", "port-resource-request-groups")
# Lists that nothing adds to.
FIXED: Mapping[str, Sequence[Row]] = {
    "extensions": [{"alias": each, "name": each, "description": ""} for each in EXTENSIONS],
    "floatingips": [],
    "routers": [],
    "segments": [],
    "security_groups": [
        {
            "id": "0f000000-0000-4000-8000-000000000001",
            "name": "default",
            "description": "",
            "security_group_rules": [],
        }
    ],
}
_NEW: Mapping[str, Row] = {
    "networks": {"name": "", "mtu": 1500, "shared": False, "admin_state_up": True, "status": "ACTIVE"},
    "subnets": {
        "name": "",
        "gateway_ip": None,
        "enable_dhcp": False,
        "dns_nameservers": [],
        "host_routes": [],
    },
    "ports": {
        "name": "",
        "device_id": "",
        "device_owner": "",
        "admin_state_up": True,
        "resource_request": None,
    },
}
_UNBOUND: Row = {"host": "", "vif_type": "unbound", "vif_details": {}, "status": "ACTIVE"}
# Without the hybrid plug no compute waits until it hears that a port was plugged.
_BOUND: Row = {
    "vif_type": "ovs",
    "vif_details": {"port_filter": True, "ovs_hybrid_plug": False, "bridge_name": "br-int"},
}
# The parts of a port's active binding, which Neutron shows as the port's own.
_OF_BINDING = {
    "binding:host_id": "host",
    "binding:vnic_type": "vnic_type",
    "binding:profile": "profile",
    "binding:vif_type": "vif_type",
    "binding:vif_details": "vif_details",
}


class Neutron:
    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Row]] = {name: {} for name in SINGULAR}
        # Of each port, by host; the active one among them.
        self._bindings: dict[str, dict[str, Row]] = {}
        self._addresses = 0

    def answer(self, method: str, path: Sequence[str], query: Query, body: Any) -> Answer:
        """The status and the body for a path below /v2.0."""
        match [method, *path]:
            case ["GET", "quotas", _]:
                unlimited = dict.fromkeys(("port", "network", "floatingip", "security_group"), -1)
                return HTTPStatus.OK, {"quota": unlimited}
            case ["GET", name] if name in FIXED or name in SINGULAR:
                rows = [self._shown(name, row) for row in self._tables.get(name, {}).values()]
                return HTTPStatus.OK, {name: _listed(FIXED.get(name, rows), query)}
            case ["POST", name] if name in SINGULAR:
                return self._create(name, body[SINGULAR[name]])
            case [_, "ports", id_, "bindings", *host] if self._is_bound(id_, *host[:1]):
                return _of_bindings(method, self._bindings[id_], host, body)
            case [_, name, id_] if id_ in self._tables.get(name, ()):
                return self._of_row(method, name, id_, query, body)
        return _not_found(path)

    def _is_bound(self, port: str, *hosts: str) -> bool:
        return port in self._bindings and {*hosts} <= self._bindings[port].keys()

    def _create(self, name: str, sent: Row) -> Answer:
        row = {"id": str(uuid.uuid4()), "tenant_id": sent.get("project_id", ""), **_NEW[name], **sent}
        if name == "ports":
            self._addresses += 1
            mac = f"fa:16:3e:00:{self._addresses >> 8:02x}:{self._addresses & 255:02x}"
            fixed_ips = [
                {
                    "subnet_id": subnet["id"],
                    "ip_address": str(ipaddress.ip_network(subnet["cidr"])[self._addresses + 1]),
                }
                for subnet in self._tables["subnets"].values()
                if subnet["network_id"] == row["network_id"]
            ]
            row = {"mac_address": mac, "fixed_ips": fixed_ips, "security_groups": [], **row}
            self._bindings[row["id"]] = {"": {**_UNBOUND, "vnic_type": "normal", "profile": {}}}
            _bind(self._bindings[row["id"]], row)
        self._tables[name][row["id"]] = row
        return HTTPStatus.CREATED, {SINGULAR[name]: self._shown(name, row)}

    def _of_row(self, method: str, name: str, id_: str, query: Query, body: Any) -> Answer:
        row = self._tables[name][id_]
        match method:
            case "PUT":
                sent = dict(body[SINGULAR[name]])
                if name == "ports":
                    _bind(self._bindings[id_], sent)
                row.update(sent)
            case "DELETE":
                del self._tables[name][id_]
                self._bindings.pop(id_, None)
                return HTTPStatus.NO_CONTENT, None
        return HTTPStatus.OK, {SINGULAR[name]: _with_fields(self._shown(name, row), query)}

    def _shown(self, name: str, row: Row) -> Row:
        match name:
            case "networks":
                subnets = self._tables["subnets"].values()
                return {**row, "subnets": [each["id"] for each in subnets if each["network_id"] == row["id"]]}
            case "ports":
                active = _active(self._bindings[row["id"]])
                shown = {field: active[part] for field, part in _OF_BINDING.items()}
                return {**row, **shown, "status": "ACTIVE" if active["host"] else "DOWN"}
        return row


def _of_bindings(method: str, bindings: dict[str, Row], path: Sequence[str], body: Any) -> Answer:
    """For all bindings of a port, or for that to a host."""
    host = path[0] if path else ""
    match [method, *path]:
        case ["GET"]:
            return HTTPStatus.OK, {"bindings": [each for each in bindings.values() if each["host"]]}
        case ["POST"] if (host := body["binding"]["host"]) in bindings:
            return _refused(HTTPStatus.CONFLICT, "PortBindingAlreadyExists", f"{host} has a binding")
        case ["POST"]:
            made = {"vnic_type": "normal", "profile": {}, **body["binding"], **_BOUND, "status": "INACTIVE"}
            bindings[host] = made
            return HTTPStatus.CREATED, {"binding": made}
        case ["DELETE", _]:
            if (gone := bindings.pop(host))["status"] == "ACTIVE":
                bindings[""] = {**gone, **_UNBOUND}
            return HTTPStatus.NO_CONTENT, None
        case ["PUT", _]:
            bindings[host] |= body["binding"]
        case ["PUT", _, "activate"] if bindings[host]["status"] == "ACTIVE":
            return _refused(HTTPStatus.CONFLICT, "PortBindingAlreadyActive", f"{host} is active")
        case ["PUT", _, "activate"]:
            _active(bindings)["status"] = "INACTIVE"
            bindings.pop("", None)
            bindings[host]["status"] = "ACTIVE"
    return HTTPStatus.OK, {"binding": bindings[host]}


def _bind(bindings: dict[str, Row], sent: Row) -> None:
    """Take what is sent about the active binding out of the port, and change the binding by it."""
    changes = {part: sent.pop(field) for field, part in _OF_BINDING.items() if field in sent}
    changes = {part: changes[part] for part in ("host", "vnic_type", "profile") if part in changes}
    was = _active(bindings)
    now = {**was, **changes, "profile": changes.get("profile", was["profile"]) or {}}
    now["host"] = now["host"] or ""
    now |= _BOUND if now["host"] else {part: _UNBOUND[part] for part in _BOUND}
    del bindings[was["host"]]
    bindings[now["host"]] = now


def _active(bindings: Mapping[str, Row]) -> Row:
    return next(each for each in bindings.values() if each["status"] == "ACTIVE")


def _listed(rows: Sequence[Row], query: Query) -> list[Row]:
    """The rows that have one of the values of each filter."""
    filters = {name: values for name, values in query.items() if name not in ("fields", "limit", "marker")}
    return [
        _with_fields(row, query)
        for row in rows
        if all(str(row.get(name, "")) in values for name, values in filters.items())
    ]


def _with_fields(row: Row, query: Query) -> Row:
    fields = query.get("fields")
    return {name: value for name, value in row.items() if name in fields} if fields else row


def _not_found(path: Sequence[str]) -> Answer:
    kind = SINGULAR.get(path[0], "resource") if path else "resource"
    return _refused(HTTPStatus.NOT_FOUND, f"{kind.capitalize()}NotFound", f"{'/'.join(path)} is not here")


def _refused(status: int, kind: str, message: str) -> Answer:
    return status, {"NeutronError": {"type": kind, "message": message, "detail": ""}}
