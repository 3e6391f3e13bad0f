"""The choice keeps answers from one spec of a batch to the next, and looks at few hosts of many: neither changes its result."""

from collections.abc import Iterator, Sequence
from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.choosing.choosing import Chosen, choose
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.hosts import HostState
from engine.inventories import GroupId, GroupMember, GroupPolicy, InventoryState, ProviderState, ServerGroup
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import consumer, provider
from tests.properties.bounds import BOUNDED

HOSTS = 400
SALT = 7
# Only three instances a host, so that hosts get full in a batch; and one cloud in three spreads over its zones.
SETTINGS = tuple(
    PluginSettings(instances_per_host_max=3, io_ops_per_host_max=9, spread_weight_multiplier=spread)
    for spread in (0.0, 0.0, 1_000.0)
)
POLICIES: tuple[GroupPolicy, ...] = ("anti-affinity", "affinity", "soft-anti-affinity")
GROUPS = tuple(
    ServerGroup(id=GroupId(UUID(int=number + 1)), policy=policy) for number, policy in enumerate(POLICIES)
)


def a_cloud(random: Random) -> Picture:
    """Of few kinds of hosts, so that many are equal, or of many."""
    kinds = random.choice((1, 3, 1_000))
    out_of_use = random.choice((0.0, 0.1, 0.7))
    picture = Picture()
    states, hosts = [], []
    for number in range(HOSTS):
        kind = Random(f"{random.getrandbits(20) % kinds}")
        id_, cell = provider(f"host-{number}"), f"c{number % 2}"
        inventories = {
            "VCPU": InventoryState(total=kind.randrange(4, 40), used=kind.randrange(3)),
            "MEMORY_MB": InventoryState(
                total=kind.randrange(2_000, 20_000), max_unit=kind.choice((1_500, 20_000))
            ),
        }
        if devices := kind.randrange(3):
            inventories["PCI_DEVICE"] = InventoryState(total=devices)
        traits = kind.choice(((), ("CUSTOM_A",), ("CUSTOM_B",)))
        states.append(
            ProviderState(
                internal=number + 1,
                id=id_,
                name=f"h{number}",
                root=id_,
                cell=cell,
                inventories=inventories,
                traits=traits,
            )
        )
        hosts.append(
            HostState(
                id=id_,
                name=f"h{number}",
                cell=cell,
                up=random.random() >= out_of_use,
                instances=kind.randrange(3),
                availability_zone=f"z{number % 3}",
                failed_builds=kind.randrange(2),
            )
        )
    picture.apply(states)
    picture.put_hosts(hosts)
    return picture


def different_specs(random: Random, count: int) -> Iterator[InstanceSpec]:
    for number in range(count):
        # Hosts with such devices are better for some, and worse for the others.
        devices = random.choice(((), (), (("PCI_DEVICE", 1),)))
        memory = 100 * random.randrange(1, 30) + number
        yield InstanceSpec(
            amounts=(("MEMORY_MB", memory), *devices, ("VCPU", random.randrange(1, 9))),
            required=random.choice(((), (), ("CUSTOM_A",))),
            preferred=random.choice(((), (), (("CUSTOM_A", 1.0),), (("CUSTOM_B", 1.0),))),
            availability_zone=random.choice(("", "", "z1")),
            server_group=random.choice((None, None, *GROUPS)),
        )


def one_after_another(
    picture: Picture, specs: Sequence[InstanceSpec], settings_: PluginSettings
) -> Iterator[Chosen | NoValidHost]:
    """Each spec is a batch of its own, in which nothing is kept."""
    plugins = chosen_plugins(settings_)
    for number, spec in enumerate(specs):
        (found,) = choose(picture, [spec], plugins, SALT)
        yield found
        if isinstance(found, Chosen):
            member = consumer(f"{number}")
            picture.hold([(member, 1, found.choice.share)])
            if spec.server_group is not None:
                host = found.choice.share.host
                picture.groups.hold(GroupMember(spec.server_group.id, member, 1, host))


@settings(BOUNDED, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_batch_of_different_specs_is_decided_as_one_spec_after_another(seed: int) -> None:
    random = Random(seed)
    plugin_settings = random.choice(SETTINGS)
    specs = list(different_specs(random, 12))
    picture = a_cloud(random)

    together = choose(picture, specs, chosen_plugins(plugin_settings), SALT)

    for one, alone in zip(together, one_after_another(picture, specs, plugin_settings), strict=True):
        assert type(one) is type(alone)
        if isinstance(one, Chosen):
            assert one == alone
