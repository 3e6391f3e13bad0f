"""What a request of Nova needs of its hosts by what is known of other instances, and which images a rebuild may have."""

from uuid import UUID

import pytest
from msgspec import structs

from engine.hosts import Supported
from nova_bridge.cloud import NovaCloud
from nova_bridge.deciding import NovaNeeds
from nova_bridge.hosts import NovaHosts
from nova_bridge.selection import ComputeNode, InstancesByService, ServiceInstances
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_state, vcpus
from tests.unit.nova.recorded import CELL, NAMES
from tests.unit.nova.test_request_spec import OTHER, THIRD, a_group, read

HOST = "rhost0001"


def needs(*instances: UUID) -> NovaNeeds:
    """Of a cloud of one host, which runs guests of one architecture and has told of these instances."""
    state = a_state(HOST, vcpus(8))
    picture = a_picture(
        state, hosts=(structs.replace(a_host(HOST), supports=(Supported(architecture="x86_64"),)),)
    )
    hosts = NovaHosts(picture)
    hosts.names = NAMES
    hosts.cloud = NovaCloud(nodes={state.id: ComputeNode(id=state.id, service=HOST, name=HOST, cell=CELL)})
    hosts.instances = InstancesByService({HOST: ServiceInstances(dict.fromkeys(instances, False))})
    return NovaNeeds(picture, hosts, standard_plugins())


@pytest.mark.parametrize(
    ("limit", "told", "ignored"),
    [("1", (), (HOST,)), ("2", (), ()), ("2", (OTHER,), ()), ("2", (OTHER, THIRD), (HOST,))],
)
def test_a_host_of_a_group_for_anti_affinity_is_full_at_the_groups_limit(
    limit: str, told: tuple[UUID, ...], ignored: tuple[str, ...]
) -> None:
    group = a_group(members=[str(OTHER), str(THIRD)], hosts=[HOST], _rules={"max_server_per_host": limit})

    spec = needs(*told).spec_of(read({"instance_group": group}), {})

    assert not isinstance(spec, str)
    assert spec.ignore_hosts == ignored


@pytest.mark.parametrize(("architecture", "why"), [("x86_64", ""), ("aarch64", "aarch64")])
def test_a_rebuild_is_refused_if_its_host_cannot_run_the_image(architecture: str, why: str) -> None:
    stays = {"scheduler_hints": {"_nova_check_type": ["rebuild"]}, "force_hosts": [HOST]}

    decision = needs().judge_rebuild(read(stays, {}, {"hw_architecture": architecture}))

    assert (decision.failure is None) == (not why)
    assert decision.failure is None or f"host {HOST} cannot run this image" in decision.failure.message
    assert decision.failure is None or why in decision.failure.message
