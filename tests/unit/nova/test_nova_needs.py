"""What a request of Nova needs of its hosts by what is known of other instances, and which images a rebuild may have."""

from uuid import UUID

import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen
from engine.flavors import InstanceId
from engine.hosts import Supported
from engine.inventories import Choice, ResourceAmount, Share
from engine.refusals import AlreadyClaimed
from nova_bridge.cloud import NovaCloud
from nova_bridge.deciding import NovaNeeds, NovaSearch
from nova_bridge.hosts import NovaHosts
from nova_bridge.selection import ComputeNode, InstancesByService, ServiceInstances
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_state, vcpus
from tests.unit.nova.recorded import CELL, INSTANCE, NAMES
from tests.unit.nova.test_request_spec import OTHER, THIRD, a_group, read
from tests.unit.scheduler.lone_scheduler import NOON

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


def test_an_instance_that_is_evacuated_claims_beside_what_it_holds_of_its_old_host() -> None:
    request = read()
    search = NovaSearch(
        InstanceId(INSTANCE), NOON, request, request.spec, host_of=lambda _: None, allows=lambda _: True
    )
    old, new = [ResourceAmount(a_host(name).id, "VCPU", 2) for name in ("old", "new")]
    search.chosen = Chosen("c1", Choice(name="new", share=Share(host=new.provider, amounts=(new,))))

    held = AlreadyClaimed(attempt=1, share=Share(host=old.provider, amounts=(old,)))
    assert search.claims_again_after(held)

    assert search.order().share.amounts == (old, new)


@pytest.mark.parametrize(("architecture", "why"), [("x86_64", ""), ("aarch64", "aarch64")])
def test_a_rebuild_is_refused_if_its_host_cannot_run_the_image(architecture: str, why: str) -> None:
    stays = {"scheduler_hints": {"_nova_check_type": ["rebuild"]}, "force_hosts": [HOST]}

    decision = needs().judge_rebuild(read(stays, {}, {"hw_architecture": architecture}))

    assert (decision.failure is None) == (not why)
    assert decision.failure is None or f"host {HOST} cannot run this image" in decision.failure.message
    assert decision.failure is None or why in decision.failure.message
