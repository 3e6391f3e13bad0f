"""`moor load` as a person runs it: small, embedded and on real servers, with the figures that it prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stories.moor.moor_process import moor_says
from tests.stories.real_servers import real_servers

SMALL = ("load", "--boots", "200", "--hosts", "20", "--cells", "2")


def figures(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(file.read_text())
    return read


async def test_the_embedded_load_builds_measures_and_audits(tmp_path: Path) -> None:
    file = tmp_path / "load.json"

    ran = await moor_says(0, "audit passed", *SMALL, "--json", str(file))

    found = figures(file)
    assert found["audit"] == {"passed": True, "problems": []}
    assert found["active"] + found["in_error"] == 200
    assert found["claims"] == 200 + found["conflicts"]
    assert f"{found['conflicts']:,} of {found['claims']:,} claims were refused" in " ".join(ran.out.split())
    assert found["boots_per_s"] > 0
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    assert found["cpu_us_per_boot"].keys() == {"total", "embedded"}
    assert found["cpu_us_per_boot"]["total"] > 0


async def test_moves_are_mixed_with_boots_and_deletes_and_each_kind_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "load.json"

    await moor_says(0, "resize 20", *SMALL, "--moves", "61", "--failing", "0", "--json", str(file))

    found = figures(file)
    assert found["audit"] == {"passed": True, "problems": []}
    assert found["active"] == found["boots"] == 200, "what became of them later does not count here"
    kinds, orders = found["kinds"], found["orders"]
    assert {kind: each["count"] for kind, each in kinds.items()} == {
        "migrate": 21,
        "live-migrate": 20,
        "resize": 20,
        "boot": 20,
        "delete": 20,
    }
    assert orders["count"] == 101
    for each in kinds.values():
        assert sum(each["outcomes"].values()) == each["count"]
        assert each["per_s"] > 0
        assert 0 < each["latency_ms"]["p50"] <= each["latency_ms"]["p99"] <= each["latency_ms"]["max"]
    assert kinds["delete"]["outcomes"] == {"deleted": 20}
    spent = orders["cpu_us_each"]
    assert spent.keys() == found["cpu_us_per_boot"].keys()
    assert spent["total"] == pytest.approx(sum(us for name, us in spent.items() if name != "total"))
    assert kinds["resize"]["outcomes"] == {"confirmed": 20}


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_on_real_servers_the_cpu_of_every_process_is_counted_once(
    tmp_path: Path,
) -> None:
    file = tmp_path / "load.json"
    async with real_servers() as (bus, database):
        servers = ("--bus", bus, "--db", database)
        await moor_says(0, "", *SMALL, *servers, "--workers", "scheduler=2", "--json", str(file))
        # A second run would measure what the first has left, hosts of the first would be chosen, and the demo would find its usage.
        await moor_says(1, "a load run needs its own servers", *SMALL, *servers)
        fewer = ("load", "--boots", "5", "--hosts", "1", "--cells", "1", *servers)
        await moor_says(1, "providers that do not belong to this run, for example c", *fewer)
        demo = ("demo", "--boots", "300", "--hosts", "40", *servers)
        await moor_says(1, "the demo needs servers on which nothing is in use", *demo)

    found = figures(file)
    assert found["audit"] == {"passed": True, "problems": []}
    assert found["active"] + found["in_error"] == 200
    spent = found["cpu_us_per_boot"]
    workers = {"placement-1", "scheduler-1", "scheduler-2"}
    workers |= {"conductor-c1-1", "conductor-c2-1", "compute-c1", "compute-c2"}
    assert spent.keys() == workers | {"total", "broker", "database"}
    assert all(us > 0 for us in spent.values())
    assert spent["total"] == pytest.approx(sum(us for name, us in spent.items() if name != "total"))
    assert found["load_generator_us_per_boot"] > 0


async def test_mistakes_are_reported_in_one_line() -> None:
    for arguments, said in (
        (("--bus", "amqp://localhost/"), "only one of --bus and --db is given"),
        (("--bus", "http://x", "--db", "sqlite:////x"), "bus_url is 'http://x' (--bus): the scheme must be"),
        (("--bus", "memory://", "--db", "sqlite:////x"), "bus_url is 'memory://': a memory bus exists only"),
        (("--bus", "amqp://x/", "--db", "foo"), "db_url is 'foo' (--db): the scheme must be"),
        (
            ("--bus", "amqp://x/", "--db", "sqlite:////x", "--placement-db", "mysql://x/y"),
            "placement_db_url is 'mysql://x/y' (--placement-db): the scheme must be",
        ),
        (("--workers", "scheduler=2"), "--workers is scheduler=2 without --bus and --db"),
        (("--bare-metal", "--moves", "3"), "--moves is 3 with --bare-metal"),
        (("--bare-metal", "--mix", "boot=1"), "--mix is 'boot=1' with --bare-metal"),
        (("--bare-metal", "--publishers", "3"), "--publishers is 3 with --bare-metal"),
        (("--bare-metal", "--host-size", "vcpus=3"), "--host-size is 'vcpus=3' with --bare-metal"),
        (("--bare-metal", "--pool", "nfs:DISK_GB=9"), "--pool is 'nfs:DISK_GB=9' with --bare-metal"),
        (("--json", "/nowhere/x.json"), "--json is '/nowhere/x.json', which cannot be written"),
        (("--rate", "5", "--in-flight", "7"), "--in-flight is 7 with --rate"),
        (("--arrivals", "odd"), "--arrivals is 'odd', must be one of even, poisson"),
        (("--mix", "boot=1", "--moves", "3"), "--moves is 3 with --mix"),
        (("--mix", "boots=1"), "--mix has 'boots' in 'boots=1', must be one of boot, multi, group"),
        (("--mix", "group:9=1", "--hosts", "10"), "--mix has group:9: its members need different hosts"),
        (("--mix", "metal=1", "--boots", "30", "--nodes", "20"), "which needs 30 nodes for --boots 30"),
    ):
        await moor_says(2, said, "load", *arguments)
