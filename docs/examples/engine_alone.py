"""Chooses hosts by the engine alone: no bus, no database. Providers and requests go in; a choice comes out, or the reasons why not.

python docs/examples/engine_alone.py
"""

from uuid import UUID

from engine.choosing.choosing import choose
from engine.choosing.explaining import in_words
from engine.choosing.planning import plan
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.flavors import Flavor, InstanceRequest, RequestProblem
from engine.hosts import HostState
from engine.inventories import ConsumerId, InventoryState, ProviderId, ProviderState, standard_vocabulary
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import read_request

picture = Picture()
for number, cpus in enumerate((4, 8), 1):
    host, name = ProviderId(UUID(int=number)), f"host-{number}"
    inventories = {"VCPU": InventoryState(total=cpus), "MEMORY_MB": InventoryState(total=8192)}
    picture.apply([ProviderState(internal=number, id=host, root=host, name=name, inventories=inventories)])
    picture.put_hosts([HostState(id=host, name=name, cell="c1", up=True)])
plugins = chosen_plugins(PluginSettings())

for flavor in (
    Flavor(vcpus=2, ram_mb=2048),
    Flavor(vcpus=6, ram_mb=2048, extra_specs={"trait:HW_CPU_X86_AVX2": "required"}),
    Flavor(vcpus=2, extra_specs={"trait:AVX2": "required"}),
):
    spec = read_request(
        InstanceRequest(flavor=flavor), standard_vocabulary(), plugins.scopes, plugins.image_keys
    )
    if isinstance(spec, RequestProblem):
        print(f"refused: {spec.field}: {spec.reason}")
        continue
    (found,) = choose(picture, [spec], plugins, salt=1, alternates=1)
    if isinstance(found, NoValidHost):
        print(in_words(found))
        for each in plan(picture, spec, plugins).relaxations:
            print(f"{each.change}: {each.hosts} hosts")
        continue
    print(f"chosen: {found.choice.name}, alternate: {[each.name for each in found.alternates]}")
    picture.hold([(ConsumerId(UUID(int=99)), 0, found.choice.share)])
