"""The simulated Ironic beside a real one: `python -m tests.servers --brokers 1 -- python -m tests.conformance.ironic [--record]`.

The real one is installed from its package, has fake hardware, and says what happens to a RabbitMQ, where it is heard as a daemon hears it. The exit code
is 1 if anything differs that `DIFFERENCES` does not list, or something listed does not differ, or if it answers otherwise than it was recorded.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import msgspec

from bus.addresses import broker_at
from bus.broker import Consuming
from engine.inventories import ProviderId
from ironic_sync.settings import Inbox
from laboratory.private_servers import Command, Keeper, wait_until_ready
from tests.conformance.ironic_steps import ANSWERS, END, SCRIPT, OurPeer, Peer, played, recorded, wrong
from tests.environments import environment
from tests.servers.free_places import free_port
from tests.unit.ironic_sim.worlds import Notification, notification
from tests.waiting import until

# The release that the captured messages are of.
IRONIC = ("ironic==39.0.0",)
HOST = "127.0.0.1"
PREFETCH = 100
# How long each work on a node takes, in whole seconds. With none, Ironic itself loses notifications.
WORK_S = 1
DELAYS = ("power", "deploy", "inspect", "rescue")
AT_WORK = frozenset(
    ("verifying", "cleaning", "deploying", "deleting", "inspecting", "adopting", "rescuing", "unrescuing")
)


class RealPeer(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.heard: list[Notification] = []

    async def settle(self, node: ProviderId) -> None:
        wanted = {"fields": "provision_state,target_power_state,reservation"}

        async def is_settled() -> bool:
            answer = await self.plain.get(f"/v1/nodes/{node}", params=wanted)
            if answer.is_error:
                return True
            now = answer.json()
            return now["provision_state"] not in AT_WORK and not (
                now["target_power_state"] or now["reservation"]
            )

        await until(is_settled, f"node {node} is settled")

    async def said(self) -> Sequence[Notification]:
        """All up to the deletion of the last node."""
        return await until(
            lambda: self.heard,
            "the last deletion is told",
            lambda heard: any(
                each.event_type == "baremetal.node.delete.end" and each.data["uuid"] == str(END)
                for each in heard
            ),
        )


@asynccontextmanager
async def real_ironic(bus_url: str) -> AsyncIterator[Peer]:
    inbox = Inbox(queue="heard of a real Ironic", creates_exchange=True)
    connection = await broker_at(bus_url).connect()
    await connection.declare(inbox.objects)
    consuming = await connection.open_consuming(inbox.queue, PREFETCH)
    with _served(bus_url, inbox.exchange) as url:
        peer = RealPeer(url)
        collecting = asyncio.create_task(_collect(consuming, peer.heard))
        try:
            yield peer
        finally:
            collecting.cancel()
            await asyncio.wait((collecting,))
            await connection.close()


async def _collect(consuming: Consuming, heard: list[Notification]) -> None:
    while True:
        for each in await consuming.receive():
            heard.append(notification(each.parcel.routing_key, {}, each.parcel.body.decode()))
            await consuming.acknowledge(each.tag)


@contextmanager
def _served(bus_url: str, exchange: str) -> Iterator[str]:
    """The address of a real Ironic: API and conductor in one process, which talk without a broker."""
    programs = environment("ironic", IRONIC)
    port = free_port()
    with closing(Keeper()) as keeper:
        file, log = keeper.directory / "ironic.conf", keeper.directory / "ironic.log"
        file.write_text(_configuration(keeper.directory, port, bus_url, exchange))
        subprocess.run(
            (str(programs / "ironic-dbsync"), "--config-file", str(file), "create_schema"),
            check=True,
            capture_output=True,
        )
        process = keeper.start(
            Command(argv=(str(programs / "ironic"), "--config-file", str(file)), env={}, log=str(log))
        )
        url = f"http://{HOST}:{port}"
        wait_until_ready(
            "ironic",
            ready=partial(_has_conductor, url),
            alive=lambda: process in keeper.processes(),
            logs=(log,),
        )
        yield url


def _configuration(directory: Path, port: int, bus_url: str, exchange: str) -> str:
    kinds = ("bios", "boot", "console", "deploy", "firmware", "inspect", "management")
    interfaces = {
        **dict.fromkeys((*kinds, "power", "raid", "rescue", "vendor"), "fake"),
        **dict.fromkeys(("network", "storage"), "noop"),
    }
    sections: Mapping[str, Mapping[str, object]] = {
        "DEFAULT": {
            "auth_strategy": "noauth",
            "host": "there",
            "my_ip": HOST,
            "state_path": directory,
            "rpc_transport": "none",
            "notification_level": "info",
            "control_exchange": exchange,
            **{f"enabled_{kind}_interfaces": name for kind, name in interfaces.items()},
            **{f"default_{kind}_interface": name for kind, name in interfaces.items()},
            "enabled_hardware_types": "fake-hardware",
        },
        "api": {"host_ip": HOST, "port": port, "api_workers": 1},
        "database": {"connection": f"sqlite:///{directory}/ironic.db"},
        "oslo_messaging_notifications": {
            "driver": "messagingv2",
            "transport_url": bus_url.replace("amqp:", "rabbit:"),
        },
        # A request that meets a lock is refused at once.
        "conductor": {"node_locked_retry_attempts": 1},
        "oslo_concurrency": {"lock_path": directory / "locks"},
        "fake": {f"{kind}_delay": WORK_S for kind in DELAYS},
    }
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in options.items())
        for name, options in sections.items()
    )


def _has_conductor(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/v1/drivers").json()["drivers"])
    except httpx.TransportError:
        return False


async def main(arguments: Sequence[str]) -> int:
    async with real_ironic(os.environ["MOOR_TEST_AMQP_URL"]) as peer:
        theirs = await played(peer)
    if arguments == ["--record"]:
        ANSWERS.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in theirs))
    changed = [
        f"{now.what}: not as recorded" for now, then in zip(theirs, recorded(), strict=True) if now != then
    ]
    found = [*wrong(theirs, await played(OurPeer())), *changed]
    print(*found, f"{len(SCRIPT)} steps with a real Ironic and ours: {len(found)} wrong", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
