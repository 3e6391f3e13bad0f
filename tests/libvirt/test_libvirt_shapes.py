"""A host whose guest is bound to CPUs of its old shape keeps that shape, says why, and changes when the guest has left."""

from operator import not_
from pathlib import Path

import pytest
from msgspec import structs

from compute_sim import wiring
from compute_sim.settings import ComputePace
from tests.libvirt.libvirt_cloud import TINY, LibvirtCloud, libvirt_cloud, libvirt_settings
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import until

PINNED = structs.replace(TINY, extra_specs={"resources:PCPU": "1", "resources:VCPU": "0"})


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that was refused is soon asked for again."""
    monkeypatch.setattr(wiring, "USUAL_PACE", ComputePace(reshape_again_s=0.2))


async def test_a_bound_guest_keeps_the_shape_and_the_hosts_record_says_so(
    tmp_path: Path, libvirtd: PrivateLibvirtd, caplog: pytest.LogCaptureFixture
) -> None:
    flat = libvirt_settings(tmp_path, libvirtd.uri, cpus_dedicated="0")
    async with libvirt_cloud(tmp_path, {"c1": flat}) as cloud:
        web = await cloud.boot(flavor=PINNED)

    async with libvirt_cloud(tmp_path, {"c1": structs.replace(flat, flat=False)}) as cloud:
        why = await until(lambda: refusal(cloud), "the shape is refused")
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
        await until(lambda: refusal(cloud), "the shape is taken", not_)
        assert {each.name for each in await cloud.providers()} == {"h1", "h1_NUMA0"}
        assert await cloud.problems() == []


async def refusal(cloud: LibvirtCloud) -> str:
    (host,) = [each async for each in cloud.client.list_hosts()]
    return host.report_refused
