"""`moor up` and the commands, each as a process of its own, as a person has them in several terminals: who may use what, sizes of hosts, settings that
are read again, a full disk; and a boot that is followed by its id through the log of all workers.
"""

import asyncio
import json
import os
import resource
import signal
from pathlib import Path

import bcrypt
import httpx
import pytest

from bus.memory import MemoryBroker
from bus.unix_socket.server import serve_unix
from tests.stories.moor.moor_process import (
    Process,
    Result,
    a_terminal,
    moor_says,
    started_at,
    up,
)
from tests.stories.moor.test_moor_metrics import FAULTS


async def test_a_host_that_is_heard_is_set_dead_only_after_a_confirmation(home: Path) -> None:
    host = "harbour-host-00001"
    async with up(home, "--cells", "harbour", "--hosts", "1") as cloud:

        async def mode() -> str:
            return str((await cloud.json("host", "show", host))["setting"]["mode"])

        async def answered(answer: bytes) -> Result:
            """Set it dead at a terminal, on which this answer was typed."""
            with a_terminal() as (keyboard, terminal):
                os.write(keyboard, answer)
                set_dead = ("host", "set", host, "dead")
                async with started_at(terminal, *set_dead, **cloud.environment) as process:
                    return await process.ended()

        for refused in (await cloud.run("host", "set", host, "dead"), await answered(b"n\n")):
            assert (refused.code, "nothing was done" in refused.err) == (1, True)
            assert f"{host} was heard" in refused.err
            assert await mode() == "up"
        sure = await answered(b"y\n")
        assert (sure.code, await mode()) == (0, "dead")

        await cloud.json("host", "set", host, "up")
        yes = await cloud.json("host", "set", host, "dead", "--yes", "--reason", "it burnt")
        assert (yes["setting"]["mode"], yes["setting"]["reason"]) == ("dead", "it burnt")


async def test_who_may_use_its_services_is_said_by_the_settings_file(home: Path) -> None:
    users, file = home / "users", home / "moorage.toml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    users.write_text(f"anna:{hashed}\nbob:{hashed}:shop:reader\n")
    file.write_text(
        f'auth = "basic"\nusers = "{users}"\nprefix = "/placement"\ndashboard_names = "moor.example"\n'
    )
    size = ("--cells", "harbour", "--hosts", "1")
    async with up(home, *size, MOOR_CONFIG=str(file)) as cloud, httpx.AsyncClient() as http:
        pages, placement = [cloud.address_of(each) for each in ("the dashboard", "placement")]
        anna, bob = ("anna", "secret"), ("bob", "secret")

        async def statuses(who: tuple[str, str] | None, *paths: str) -> list[int]:
            version = {"openstack-api-version": "placement 1.9", "origin": "http://evil.example"}
            asked = [
                await http.get(f"{placement}/placement{path}", auth=who, headers=version) for path in paths
            ]
            assert all("access-control-allow-origin" not in each.headers for each in asked)
            return [each.status_code for each in asked]

        assert await statuses(None, "/resource_providers") == [401]
        assert await statuses(anna, "/resource_providers", "/usages?project_id=bank") == [200, 200]
        own, other = "/usages?project_id=shop", "/usages?project_id=bank"
        both = f"{own}&project_id=bank"
        assert await statuses(bob, "/resource_providers", own, other, both) == [403, 200, 403, 403]
        assert [
            (await http.get(pages, headers={"host": name}, auth=anna)).status_code
            for name in ("moor.example", "elsewhere.example")
        ] == [200, 400]
        # Other users of the machine use neither its socket nor its files.
        kept = {each.name: each.stat().st_mode & 0o077 for each in (home / "moorage").iterdir()}
        assert {"bus.sock", "bus.journal"} <= kept.keys()
        assert not any(kept.values()), kept


async def test_a_cloud_that_cannot_start_leaves_no_address_of_an_ironic_that_does_not_run(home: Path) -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]
        at = {"XDG_STATE_HOME": str(home), "MOOR_LISTEN": f"127.0.0.1:{port}"}
        told = f"no HTTP service: listen is 127.0.0.1:{port}"
        await moor_says(1, told, "up", "--hosts", "1", "--nodes", "1", **at)
        async with serve_unix(MemoryBroker(), home / "moorage" / "bus.sock"):
            await moor_says(1, "bus.sock is served by another process: stop it first", "up", **at)
    left = {name for _, _, names in os.walk(home) for name in names}
    assert not left & {"ironic.url", "bus.sock"}


async def test_without_a_cloud_the_commands_say_so(home: Path) -> None:
    told = (f"no process serves a bus at {home}/moorage/bus.sock", "moor up")
    await moor_says(1, told, "list", XDG_STATE_HOME=str(home))


async def test_a_disk_that_is_full_when_it_stops_is_told_in_a_line_and_nothing_confirmed_is_lost(
    home: Path,
) -> None:
    hosts = ("--cells", "harbour", "--hosts", "1", "--dashboard-listen", "off")
    async with up(home, *hosts) as cloud:
        await cloud.says(0, "", "boot", "--vcpus", "1")
        # As on a full disk, no file of the process grows.
        resource.prlimit(cloud.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        await cloud.process.until_printed_to_stderr("bus.journal cannot be written")
        cloud.process.send_signal(signal.SIGTERM)
        stopped = await cloud.process.ended()

    assert stopped.code == 1
    last = stopped.err.splitlines()[-1]
    assert last.startswith(f"not stopped in order: {home}/moorage/bus.journal cannot be written: ")
    assert last.endswith("confirmed messages are kept, and the last ones may be handled again")
    async with up(home, *hosts) as cloud:
        assert [each["state"] for each in await cloud.json("list")] == ["active"]


SIZE = "vcpus=8,ram_mb=16384,numa_nodes=2,pcpus=8,pages=2048:8192,device=pci:10de:20b0"


async def test_guests_get_cells_pages_and_devices(home: Path) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "1", "--host-size", SIZE) as cloud:
        pinned = "--extra-spec", "hw:cpu_policy=dedicated"
        two = "--extra-spec", "hw:numa_nodes=2"
        paged = "--extra-spec", "hw:mem_page_size=large"
        for words in (("--vcpus", "4", *pinned, *two, *paged), ("--vcpus", "1")):
            booted = await cloud.json("boot", "--ram", "2048", *words)
            assert [each["state"] for each in booted["instances"]] == ["active"]
        providers = await cloud.json("provider", "list")
        used = {
            (each["name"].removeprefix("harbour-host-00001"), resource): inventory["used"]
            for each in providers
            for resource, inventory in each["inventories"].items()
            if inventory["used"]
        }
        huge = "CUSTOM_MEMORY_MB_PAGES_2048"
        assert [used[cell, resource] for cell in ("_NUMA0", "_NUMA1") for resource in ("PCPU", huge)] == [
            2,
            1024,
            2,
            1024,
        ]

        told = "guest cell 0: PCPU asked 6, gives at most 4 at harbour-host-00001_NUMA"
        await cloud.says(1, told, "boot", "--vcpus", "6", "--ram", "512", *pinned)


ONE_EACH = """
[scheduler]
instances_per_host_max = 1
request_timeout_s = 250
"""
BOOT = ("boot", "--vcpus", "1", "--ram", "64", "--disk", "1")


async def after_hangup(process: Process, what: str) -> list[str]:
    """The log from now on until a line that contains this text, which is the last."""
    process.told.clear()
    process.send_signal(signal.SIGHUP)
    await process.until_printed_to_stderr(what)
    return list(process.told)


@pytest.mark.timeout(240)
async def test_moor_up_takes_a_new_limit_without_a_restart_and_refuses_a_wrong_file(home: Path) -> None:
    file = home / "moorage.toml"
    file.write_text(ONE_EACH)
    async with up(home, "--cells", "harbour", "--hosts", "1", MOOR_CONFIG=str(file)) as cloud:
        codes = [(await cloud.run(*BOOT)).code for _ in range(2)]
        assert codes == [0, 1]

        file.write_text("[scheduler]\ninstances_per_host_max = 2\nmove_timeout_s = 0\n")
        (line,) = await after_hangup(cloud.process, "the settings stay as they are")
        assert "scheduler.move_timeout_s is 0" in line
        file.write_text(ONE_EACH)
        assert (await cloud.run(*BOOT)).code == 1

        file.write_text(ONE_EACH.replace("max = 1", "max = 2").replace("250", "300"))
        told = await after_hangup(cloud.process, "was read again")
        assert [line.partition(" WARNING ")[2].strip() for line in told] == [
            f"reloaded: scheduler.instances_per_host_max: 1 -> 2 ({file})",
            f"needs a restart: scheduler.request_timeout_s: 250 -> 300 ({file})",
            f"{file} was read again: 1 settings changed, 1 need a restart",
        ]
        codes = [(await cloud.run(*BOOT)).code for _ in range(2)]
        assert codes == [0, 1]


async def test_a_boot_that_fails_is_followed_by_its_id_as_json(home: Path) -> None:
    faults = home / "faults.toml"
    faults.write_text(FAULTS)
    options = ("--cells", "harbour", "--hosts", "1", "--faults", str(faults))
    async with up(home, *options, MOOR_LOG_LEVEL="INFO", MOOR_LOG_FORMAT="json") as cloud:

        async def logged(text: str) -> dict[str, str]:
            found: dict[str, str] = json.loads(await cloud.process.until_printed_to_stderr(text))
            return found

        booted = json.loads((await cloud.run("boot", "--vcpus", "1", "--count", "2", "-o", "json")).out)
        accepted = await logged('"accepted"')
        assert (accepted["request"], accepted["count"]) == (booted["request_id"], "2")
        failed = await logged('"attempt failed"')
        assert (failed["host"], failed["attempt"]) == ("harbour-host-00001", "1")
        assert failed["reason"]
        assert {failed["instance"], (await logged('"error"'))["instance"]} <= {
            each["id"] for each in booted["instances"]
        }

        giant = await cloud.run("boot", "--vcpus", "500", "-o", "json")
        (nowhere,) = json.loads(giant.out)["instances"]
        assert (await logged(nowhere["request_id"]))["message"] == "accepted"
        refused = await logged(nowhere["id"])
        assert (refused["message"], refused["cell"]) == ("error", "cell0")
        assert "500" in refused["reason"]
        await cloud.run("boot", "--vcpus", "1", "--trait", "HW_CPU_NONE")
        assert "HW_CPU_NONE" in (await logged('"rejected"'))["reason"]
