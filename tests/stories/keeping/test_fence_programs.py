"""The fences that come with keepers: by Redfish, against OpenStack's emulator of controllers, and by Ironic's power."""

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import bcrypt
import httpx
import pytest
import trustme
from msgspec import structs

from bus.messages.keeping import CampaignHost, CampaignId, CampaignState, CampaignWork
from engine.inventories import ProviderId
from keeper.hooks import Hooks
from laboratory.ironic import IronicServer, IronicSimSettings, SimulatedIronic, WorkDurations, available_nodes
from tests.running import running
from tests.servers.free_places import free_port
from tests.waiting import until

FIRST, SECOND = UUID(int=1), UUID(int=2)
SYSTEMS = [
    {
        "uuid": str(id_),
        "name": f"system-{id_.int}",
        "power_state": "On",
        "external_notifier": False,
        "nics": [],
    }
    for id_ in (FIRST, SECOND)
]


def ran(name: str, file: Path, host: str, cell: str = "c1") -> tuple[int, str]:
    command = [sys.executable, "-m", "keeper.fences", name, str(file), host, cell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


class Controller:
    """A controller with two systems, or one."""

    def __init__(self, url: str, ca: Path, folder: Path) -> None:
        self.url, self.ca = url, ca
        self._folder = folder
        self._client = httpx.Client(
            base_url=url, auth=("admin", "secret"), verify=ssl.create_default_context(cafile=ca), timeout=20
        )

    def is_heard(self) -> bool:
        with suppress(httpx.TransportError):
            return bool(self.power())
        return False

    def power(self, system: UUID = FIRST) -> str:
        return str(self._client.get(f"/redfish/v1/Systems/{system}").raise_for_status().json()["PowerState"])

    def file(self, *, has_password: bool = True, **hosts: str) -> Path:
        secret, file = self._folder / "secret", self._folder / "controllers.toml"
        secret.write_text("secret" if has_password else "wrong")
        secret.chmod(0o600)
        lines = [f'"{name.replace("_", "/")}" = "{self.url}{path}"' for name, path in hosts.items()]
        file.write_text(
            f'[redfish]\nuser = "admin"\npassword_file = "{secret}"\nca_file = "{self.ca}"\n[redfish.hosts]\n'
            + "\n".join(lines)
        )
        return file


@asynccontextmanager
async def controller(folder: Path, systems: int = 2) -> AsyncIterator[Controller]:
    authority, port = trustme.CA(), free_port()
    ca, key, cert = folder / "ca.pem", folder / "key.pem", folder / "cert.pem"
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(ca))
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    users, settings = folder / "users", folder / "emulator.conf"
    users.write_text(f"admin:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    settings.write_text(
        f"SUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\nSUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\n"
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = {SYSTEMS[:systems]!r}\n"
    )
    words = ("--config", str(settings), "--fake", "-i", "127.0.0.1", "-p", str(port))
    secured = ("--ssl-certificate", str(cert), "--ssl-key", str(key))
    with (folder / "emulator.log").open("w") as said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sushy_tools.emulator.main", *words, *secured), stdout=said, stderr=said
        )
    try:
        made = Controller(f"https://127.0.0.1:{port}", ca, folder)
        await until(made.is_heard, "the controller is heard")
        yield made
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.proof
async def test_a_host_is_off_when_its_controller_says_so_and_not_before(tmp_path: Path) -> None:
    async with controller(tmp_path) as there:
        file = there.file(h1=f"/redfish/v1/Systems/{FIRST}", c2_h1=f"/redfish/v1/Systems/{SECOND}", h3="")
        assert ran("redfish", file, "h1") == (0, "")
        assert (there.power(FIRST), there.power(SECOND)) == ("Off", "On")
        # It is off already, and the host of this name in the other cell is another one.
        assert ran("redfish", file, "h1") == (0, "")
        assert ran("redfish", file, "h1", "c2") == (0, "")
        assert there.power(SECOND) == "Off"

        assert ran("redfish", file, "h2") == (1, "the file of controllers has no host h2, and no c1/h2")
        code, why = ran("redfish", file, "h3")
        assert (code, "has 2 systems: name one by its path" in why) == (1, True)
        code, why = ran("redfish", there.file(has_password=False, h1=f"/redfish/v1/Systems/{FIRST}"), "h1")
        assert (code, there.url in why) == (1, True)
    code, why = ran("redfish", file, "h1")
    assert (code, there.url in why) == (1, True)


@pytest.mark.proof
async def test_a_controller_with_one_system_needs_no_path(tmp_path: Path) -> None:
    async with controller(tmp_path, systems=1) as there:
        assert ran("redfish", there.file(h1=""), "h1") == (0, "")
        assert there.power() == "Off"


HOST = CampaignHost(id=ProviderId(UUID(int=7)), host="h1", cell="c1")
CAMPAIGN = CampaignState(id=CampaignId(UUID(int=8)), name="lost", work=CampaignWork(kind="evacuate"))


async def test_a_node_is_off_when_ironic_says_so(tmp_path: Path) -> None:
    settings = IronicSimSettings(delays=WorkDurations(power_s=0.5))
    (on,) = [structs.replace(each, power_state="power on") for each in available_nodes(1)]
    ironic = SimulatedIronic((on,), time.time, lambda *_: None, settings)
    server = IronicServer(ironic)
    file = tmp_path / "controllers.toml"
    file.write_text(f'[ironic]\nurl = "{server.url}"\n[ironic.hosts]\nh1 = "{on.name}"\nh2 = "nothing"\n')
    hooks = Hooks("", str(file))
    async with running((ironic, server)), hooks:
        assert hooks.why_unknown("ironic") == ""
        assert "has no table [redfish]" in hooks.why_unknown("redfish")

        async def ended(host: CampaignHost) -> str:
            said: list[str] = []

            def has_ended() -> bool:
                why = hooks.result(CAMPAIGN, host, "ironic", 20)
                said.extend([why] if why is not None else [])
                return bool(said)

            await until(has_ended, "it has ended")
            return said[0]

        assert await ended(HOST) == ""
        node = ironic.node(str(on.name))
        assert node is not None
        assert node.power_state == "power off"
        why = await ended(structs.replace(HOST, id=ProviderId(UUID(int=9)), host="h2"))
        assert "nothing" in why


def test_a_fence_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    hooks = Hooks("", "")
    assert "set keeper.controllers_file" in hooks.why_unknown("redfish")
    file = tmp_path / "controllers.toml"
    hooks = Hooks("", str(file))
    assert str(file) in hooks.why_unknown("ironic")
    for wrong, why in (
        ("[redfish", "Expected"),
        ("[redfish]\nuser = 'a'", "missing required field `password_file`"),
        ("[ironic]\nurl = 'keystone'\nnodes = 3", "nodes"),
    ):
        file.write_text(wrong)
        told = hooks.why_unknown("redfish")
        assert (str(file) in told, why in told) == (True, True), told
    # A program of this name in the folder of hooks goes before.
    program = tmp_path / "redfish"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o700)
    assert Hooks(str(tmp_path), str(file)).why_unknown("redfish") == ""


@pytest.mark.parametrize("arguments", [("redfish",), ("ilo", "file", "h1", "c1")])
def test_a_fence_that_is_called_wrongly_ends_with_an_error(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "keeper.fences", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
