"""A whole switch from Nova while instances are built on both sides: `python -m tests.nova.switch [HOSTS INSTANCES]`.

The import is killed ten times on its way, and goes on each time. A hundredth of the hosts stays enabled in Nova at first: Nova builds on
these meanwhile. Here the first hosts are of nobody else, and those that were handed over are used at once.
"""

import asyncio
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from msgspec import Struct

from bus.messages.build import BuildInstance
from bus.messages.hosts import HostSet, SetHost
from engine.flavors import Flavor, RequestId, instance_id_of
from laboratory.load.kernel import process_cpu_s
from moor.client.bus_client import BusClient, connected_at
from tests.asking import until_state
from tests.nova.large import CELL, FLAVORS, host_name, large
from tests.nova.rows import NovaRows, id_of
from tests.nova.schema import NovaAddresses
from tests.stories.moor.moor_process import Result, moor_says, started, started_anew

KILLS = 10
OURS = 5
BOOTS_PAUSE_S = 0.2
WITHIN_S = 1800
TINY = Flavor(name="tiny", vcpus=1, ram_mb=64, root_gb=1)


class Switched(Struct, frozen=True):
    """`cpu_s` is that of the import's processes; `cloud_cpu_s` of `moor up`, boots included."""

    hosts: int
    instances: int
    seconds: float
    cpu_s: float
    cloud_cpu_s: float
    kills: int
    boots: int
    built_by_nova: int
    audit: str


async def switch(
    directory: Path, hosts: int, instances: int, *, seed: int = 1, kills: int = KILLS
) -> Switched:
    addresses = large(directory / "nova", hosts, instances)
    late = [host_name(number) for number in range(hosts) if number % 100 == 1]
    with NovaRows.again(addresses) as nova:
        for name in late:
            nova.change(CELL, "UPDATE services SET disabled = 0 WHERE host = ?", name)
    environment = {"XDG_STATE_HOME": str(directory)}
    chance = random.Random(seed)
    async with started("up", "--cells", CELL, "--hosts", str(hosts + OURS), **environment) as up:
        await up.until_printed("ready")
        bus = f"unix://{directory}/moorage/bus.sock"
        async with connected_at(bus, operates=True) as asking:
            await _fence(asking, hosts)
            boots: list[RequestId] = []
            nova_built = 0
            booting = asyncio.create_task(_boot(asking, boots))
            began_s, cpu_s = time.monotonic(), _cpu_of_children_s()
            for kill in range(kills):
                async with started_anew("nova", "import", *addresses.arguments, **environment) as importing:
                    await asyncio.sleep(chance.uniform(0.7, 0.9 + hosts / 50))
                    importing.send_signal(signal.SIGKILL)
                nova_built += _nova_builds(addresses, late, instances + 1_000_000 + kill * 1_000)
            ran = await _imported(addresses, environment)
            told = {each["host"]: each for each in json.loads(ran.out)["hosts"]}
            assert {name for name, each in told.items() if each["stage"] != "here"} == {*late}, (
                ran.out + ran.err
            )
            with NovaRows.again(addresses) as nova:
                for name in late:
                    nova.disable(CELL, name)
            ran = await _imported(addresses, environment)
            assert ran.code == 0, ran.out + ran.err
            seconds, cpu_s = time.monotonic() - began_s, _cpu_of_children_s() - cpu_s
            booting.cancel()
            await asyncio.gather(booting, return_exceptions=True)
            for request in boots:
                await until_state(asking, instance_id_of(request, 0), "active")
        print(f"all here in {seconds:.0f} s; CPU of the import {cpu_s:.1f} s", file=sys.stderr, flush=True)
        verified = await _imported(addresses, environment, "--verify")
        reasons = [why for each in json.loads(verified.out)["hosts"] for why in each["reasons"]]
        # What was built here since is on hosts that were handed over.
        assert all(why.endswith("Nova does not have it on this host") for why in reasons), reasons
        audited = await moor_says(0, "", "audit", "--settle", "0", **environment)
        cloud_cpu_s = process_cpu_s(up.pid)
    return Switched(
        hosts, instances, seconds, cpu_s, cloud_cpu_s, kills, len(boots), nova_built, audited.out.strip()
    )


async def _imported(addresses: NovaAddresses, environment: dict[str, str], *flags: str) -> Result:
    arguments = ("nova", "import", *addresses.arguments, *flags, "-o", "json")
    async with started_anew(*arguments, **environment) as importing:
        return await importing.ended(WITHIN_S)


async def _fence(asking: BusClient, hosts: int) -> None:
    """As long as Nova has a host, nothing is built on it here."""
    for start in range(0, hosts, 100):
        orders = [
            SetHost(host=host_name(number), mode="draining", reason="Nova has it")
            for number in range(start, min(start + 100, hosts))
        ]
        assert all(isinstance(each, HostSet) for each in await asking.ask_all(orders))


async def _boot(asking: BusClient, boots: list[RequestId]) -> None:
    while True:
        request = RequestId(UUID(id_of("boot", len(boots))))
        boots.append(request)
        await asking.send(BuildInstance(request_id=request, flavor=TINY, project="ours"))
        await asyncio.sleep(BOOTS_PAUSE_S)


def _nova_builds(addresses: NovaAddresses, hosts: Sequence[str], first: int) -> int:
    with NovaRows.again(addresses) as nova:
        for number, host in enumerate(hosts):
            nova.instance(CELL, host, first + number, flavor=FLAVORS[0])
    return len(hosts)


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str]) -> None:
    hosts, instances = map(int, arguments) if arguments else (1_000, 20_000)
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        print(asyncio.run(switch(Path(place), hosts, instances)))


if __name__ == "__main__":
    main(sys.argv[1:])
