"""Which provider of a share serves which group: what Nova binds ports and devices to."""

from collections.abc import Sequence
from uuid import UUID

from engine.candidates.provider_index import ProviderIndex
from engine.inventories import ProviderId, ProviderState, ResourceAmount, Share
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from nova_bridge.selection import group_providers

ROOT, LEFT, RIGHT, UNDER_LEFT = (ProviderId(UUID(int=number)) for number in (1, 2, 3, 4))
BANDWIDTH, PACKETS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_PACKET_RATE_KILOPACKET_PER_SEC"


def an_index() -> ProviderIndex:
    index = ProviderIndex()
    tree = [
        (ROOT, None, ()),
        (LEFT, ROOT, ("CUSTOM_PHYSNET_A",)),
        (RIGHT, ROOT, ("CUSTOM_PHYSNET_B",)),
        (UNDER_LEFT, LEFT, ()),
    ]
    for number, (id_, parent, traits) in enumerate(tree, 1):
        index.put(
            ProviderState(
                internal=number,
                id=id_,
                name=f"p{number}",
                root=ROOT,
                parent=parent,
                traits=traits,
                revision=1,
            )
        )
    index.attach_trees()
    return index


def a_share(*amounts: tuple[ProviderId, str, int]) -> Share:
    return Share(
        host=ROOT,
        amounts=tuple(
            ResourceAmount(provider=id_, resource=resource, amount=amount)
            for id_, resource, amount in (*amounts, (ROOT, "VCPU", 1))
        ),
    )


def a_spec(*groups: GranularGroup, isolates: bool = False, near: Sequence[str] = ()) -> InstanceSpec:
    return InstanceSpec(
        amounts=(("VCPU", 1),),
        groups=groups,
        isolates=isolates,
        same_subtree=(tuple(near),) if near else (),
    )


def test_groups_of_equal_amounts_are_told_apart_by_their_traits() -> None:
    first = GranularGroup("port 1", ((BANDWIDTH, 10),), required=("CUSTOM_PHYSNET_B",))
    second = GranularGroup("port 2", ((BANDWIDTH, 10),), forbidden=("CUSTOM_PHYSNET_B",))
    share = a_share((LEFT, BANDWIDTH, 10), (RIGHT, BANDWIDTH, 10))

    assert group_providers(a_spec(first, second), share, an_index()) == {"port 1": RIGHT, "port 2": LEFT}


def test_groups_of_one_subtree_get_providers_of_one_subtree() -> None:
    wide = GranularGroup("port 1", ((BANDWIDTH, 10),))
    packets = GranularGroup("port 2", ((PACKETS, 5),))
    share = a_share((LEFT, BANDWIDTH, 10), (RIGHT, BANDWIDTH, 10), (UNDER_LEFT, PACKETS, 5))

    found = group_providers(a_spec(wide, packets, near=("port 1", "port 2")), share, an_index())
    assert found == {"port 1": LEFT, "port 2": UNDER_LEFT}
