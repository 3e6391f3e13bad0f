"""A host whose guest is bound to CPUs of its old shape keeps that shape, says why, and changes when the guest has left."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from bus.messages.build import InstanceState
from compute_sim import wiring
from compute_sim.libvirt.core.machine import read_cpus, read_machine
from compute_sim.settings import ComputePace
from tests.libvirt.libvirt_cloud import TINY, LibvirtCloud, libvirt_cloud, libvirt_settings, virsh
from tests.servers.libvirtd import PrivateLibvirtd

PINNED = structs.replace(TINY, extra_specs={"resources:PCPU": "1", "resources:VCPU": "0"})


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that was refused is soon asked for again."""
    monkeypatch.setattr(wiring, "USUAL_PACE", ComputePace(reshape_again_s=0.2))


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[PrivateLibvirtd]:
    with PrivateLibvirtd() as server:
        yield server


@pytest.mark.asyncio
async def test_a_bound_guest_keeps_the_shape_and_the_hosts_record_says_so(
    tmp_path: Path, libvirtd: PrivateLibvirtd, caplog: pytest.LogCaptureFixture
) -> None:
    flat = libvirt_settings(tmp_path, libvirtd.uri, cpus_dedicated="0")
    async with libvirt_cloud(tmp_path, {"c1": flat}) as cloud:
        web = await cloud.boot(flavor=PINNED)

    cells = structs.replace(flat, flat=False)
    async with libvirt_cloud(tmp_path, {"c1": cells}) as cloud:
        async with asyncio.timeout(30):
            while not (why := await refusal(cloud)):
                await asyncio.sleep(0.05)
        bound = f"{web.id} is bound to its 1 PCPU: the shape can change when it has left the host"
        assert why == f"the host cannot get its new shape: {bound}"
        assert (
            f"reshape of host h1 refused, tried again with its next change and every 0.2 s: {why}"
            in caplog.text
        )
        assert [each.name for each in await cloud.providers()] == ["h1"]
        assert (await cloud.client.show(web.id)).state == "active"
        assert await cloud.problems(web, amounts={"PCPU": 1, "MEMORY_MB": 32}) == []

        await (await cloud.client.delete(web.id)).until_done()
        async with asyncio.timeout(30):
            while await refusal(cloud):
                await asyncio.sleep(0.05)
        assert {each.name for each in await cloud.providers()} == {"h1", "h1_NUMA0"}
        assert await cloud.problems() == []


@pytest.mark.skipif(
    (psutil.cpu_count() or 1) < 2, reason="one CPU cannot be shared and another one dedicated"
)
@pytest.mark.asyncio
async def test_a_guest_leaves_the_cpu_that_its_host_dedicates_while_it_runs(
    tmp_path: Path, libvirtd: PrivateLibvirtd
) -> None:
    flat = libvirt_settings(tmp_path, libvirtd.uri)
    async with libvirt_cloud(tmp_path, {"c1": flat}) as cloud:
        older = await cloud.boot("older")
    last = str(max(read_machine(virsh(libvirtd.uri, "capabilities")).cpus))
    assert last in pinned(libvirtd, older)

    cells = structs.replace(flat, flat=False, cpus_dedicated=last)
    async with libvirt_cloud(tmp_path, {"c1": cells}) as cloud:
        async with asyncio.timeout(30):
            while {each.name for each in await cloud.providers()} != {"h1", "h1_NUMA0"}:
                await asyncio.sleep(0.05)
        dedicated = await cloud.boot("dedicated", flavor=PINNED)
        assert (dedicated.state, pinned(libvirtd, dedicated)) == ("active", {last})
        for kept in ((), ("--config",)):
            assert last not in pinned(libvirtd, older, *kept)
        assert (await cloud.client.show(older.id)).state == "active"
        for each in (older, dedicated):
            await (await cloud.client.delete(each.id)).until_done()
        assert await cloud.problems() == []


def pinned(libvirtd: PrivateLibvirtd, guest: InstanceState, *options: str) -> set[str]:
    """The CPUs on which the guest's CPU and its emulator may run, as they are written, one by one."""
    domain = f"moor-{guest.id}-1"
    found = set()
    for what in ("vcpupin", "emulatorpin"):
        for line in virsh(libvirtd.uri, what, domain, *options).splitlines()[2:]:
            if line.split():
                found |= {str(cpu) for cpu in read_cpus(line.split()[1])}
    return found


async def refusal(cloud: LibvirtCloud) -> str:
    (host,) = [each async for each in cloud.client.list_hosts()]
    return host.report_refused
