"""Fences that come with the keepers, `redfish` and `ironic`: each switches a host off by its controller, and ends well only when that says
that the host is off. A file of the operator says which controller a host has:

    [redfish]
    user = "moorage"
    password_file = "/etc/moorage/controllers.password"
    ca_file = "/etc/moorage/controllers.pem"

    [redfish.hosts]
    host-1 = "https://10.0.3.1"
    "c2/host-1" = "https://10.0.3.2/redfish/v1/Systems/437XR1138R2"

    [ironic]
    url = "keystone"

    [ironic.hosts]
    host-2 = "node-2"

A fence is a program of its own, like a hook, so that a controller that hangs holds nothing up:

    python -m keeper.fences redfish FILE HOST CELL
"""

import asyncio
import importlib.util
import os
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from engine.hosts import host_in_cell
from kit.errors import Operational
from kit.keystone import OPENSTACK
from kit.login import RestService
from kit.rest import Microversion, RestClient
from kit.urls import read_secret

IRONIC = RestService(name="Ironic", url_key="ironic.url", types=("baremetal", "bare-metal"), version="/v1")
LOOK_S = 1.0
ACCEPTED, CONFLICT = 202, 409
OFF = "power off"


class Redfish(Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    password_file: str
    # By the host's name, or by its cell and its name: the controller's address, with the path of the system if it has several.
    hosts: dict[str, str]
    ca_file: str = ""


class Ironic(Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    # The name or the id of its node.
    hosts: dict[str, str]


class Controllers(Struct, frozen=True, forbid_unknown_fields=True):
    redfish: Redfish | None = None
    ironic: Ironic | None = None


BUILT_IN = Controllers.__struct_fields__


class NotOff(Operational):
    """It is not known that the host is off."""


def controllers_in(file: str) -> Controllers:
    """Raises ValueError or OSError."""
    return msgspec.convert(tomllib.loads(Path(file).read_text("utf-8")), Controllers)


def why_unusable(name: str, file: str) -> str:
    """Why this fence cannot be used; empty if it can."""
    if not file:
        return f"the keepers know no controllers: set keeper.controllers_file, or put a program {name} into the folder of hooks"
    try:
        known = controllers_in(file)
    except (OSError, ValueError) as problem:
        return f"keeper.controllers_file is {file!r}: {problem}"
    if getattr(known, name) is None:
        return f"{file} has no table [{name}]"
    if name == "redfish" and importlib.util.find_spec("sushy") is None:
        return "the package sushy is not there: install moorage[redfish]"
    return ""


def command_of(name: str, file: str) -> Sequence[str]:
    return sys.executable, "-m", "keeper.fences", name, file


def _of_host(hosts: Mapping[str, str], name: str, cell: str) -> str:
    found = hosts.get(host_in_cell(cell, name)) or hosts.get(name)
    if not found:
        raise NotOff(f"the file of controllers has no host {name}, and no {host_in_cell(cell, name)}")
    return found


def redfish_off(way: Redfish, name: str, cell: str) -> None:
    import sushy  # noqa: PLC0415 - it takes half a second to load, and only this program needs it

    address = urlsplit(_of_host(way.hosts, name, cell))
    root, path = f"{address.scheme}://{address.netloc}", address.path.rstrip("/")
    try:
        controller = sushy.Sushy(
            root, username=way.user, password=read_secret(way.password_file), verify=way.ca_file or True
        )
        if path in ("", "/redfish/v1"):
            systems = controller.get_system_collection().get_members()
            if len(systems) != 1:
                raise NotOff(
                    f"{root} has {len(systems)} systems: name one by its path, /redfish/v1/Systems/..."
                )
            (system,) = systems
        else:
            system = controller.get_system(path)
        if system.power_state != sushy.PowerState.OFF:
            system.reset_system(sushy.ResetType.FORCE_OFF)
        while system.power_state != sushy.PowerState.OFF:
            time.sleep(LOOK_S)
            system.refresh(force=True)
    except sushy.exceptions.SushyError as problem:
        raise NotOff(f"{root}: {problem}") from problem


async def ironic_off(way: Ironic, name: str, cell: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raises kit/errors.py's operational failures, too."""
    node = quote(_of_host(way.hosts, name, cell), safe="")
    client = RestClient(IRONIC, way.url, OPENSTACK.read(environment), Microversion("baremetal", "1.31"))
    try:
        while True:
            told = client.read(client.granted(await client.ask(f"/v1/nodes/{node}")), _Node)
            if told.power_state == OFF and not told.target_power_state:
                return
            if told.target_power_state != OFF:
                body = msgspec.json.encode({"target": OFF})
                answer = await client.send("PUT", f"/v1/nodes/{node}/states/power", {}, body)
                # A conductor may have locked it: then it is asked again.
                if answer.status not in (ACCEPTED, CONFLICT):
                    client.granted(answer)
            await asyncio.sleep(LOOK_S)
    finally:
        await client.close()


class _Node(Struct, frozen=True):
    power_state: str | None = None
    target_power_state: str | None = None


def main(arguments: Sequence[str]) -> int:
    name, file, host, cell = arguments
    why = why_unusable(name, file) if name in BUILT_IN else f"{name} is none of {', '.join(BUILT_IN)}"
    try:
        controllers = controllers_in(file)
        if not why and name == "redfish" and controllers.redfish is not None:
            redfish_off(controllers.redfish, host, cell)
        if not why and name == "ironic" and controllers.ironic is not None:
            asyncio.run(ironic_off(controllers.ironic, host, cell))
    except (OSError, Operational, ValueError) as problem:
        why = str(problem)
    sys.stdout.write(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
