"""Mistakes that keep bare-metal nodes unused although nothing is broken.

- A node without a resource class, or without a cell, offers nothing.
- A class that no stored flavor requests may never be used.
- A bare-metal flavor whose class no node has never finds a host.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from bus.messages.stored_names import AskFlavors, FlavorsFound
from engine.flavors import Flavor
from ironic_sync.core.offers import class_of
from kit.errors import Operational
from moor.asking import Asks, items_of
from moor.bare_metal.nodes import NodeShown, has_ironic, reading_nodes
from moor.settings import Settings

RESOURCES, CUSTOM = "resources:", "CUSTOM_"


async def notes_on_nodes(asking: Asks, settings: Settings) -> tuple[str, ...]:
    """The mistakes in the Ironic that the settings name, each as a sentence; none if they name none."""
    if not has_ironic(settings) and not settings.addresses.ironic_db_url:
        return ()
    try:
        async with reading_nodes(settings) as reader:
            nodes = (await reader.all()).nodes
    except Operational as problem:
        return (f"the bare-metal nodes are not known: {problem}",)
    flavors = await items_of(asking, AskFlavors(), FlavorsFound, lambda page: page.flavors)
    return mistakes_in(nodes, {each.name: each for each in flavors})


def mistakes_in(nodes: Sequence[NodeShown], flavors: Mapping[str, Flavor]) -> tuple[str, ...]:
    """Without any flavor, classes are not compared with flavors: requests may have theirs from elsewhere."""
    counts = Counter[str]()
    mistakes = []
    for each in nodes:
        if each.ironic is None:
            continue
        name, own = each.name or each.id, each.ironic.resource_class
        if named := class_of(own):
            counts[named] += 1
        else:
            why = f"its resource class {own!r} is too long" if own else "it has no resource class"
            mistakes.append(f"node {name}: {why}")
        if each.cell_note and not each.cell:
            mistakes.append(f"node {name}: it has no cell: {each.cell_note}")
    if flavors:
        asked = {name: classes_of_nodes(flavor) for name, flavor in flavors.items()}
        all_asked = {each for classes in asked.values() for each in classes}
        mistakes += [
            f"class {name} of {count} {'node' if count == 1 else 'nodes'}: no stored flavor requests it"
            for name, count in sorted(counts.items())
            if name not in all_asked
        ]
        mistakes += [
            f"flavor {name}: no node has {', '.join(lacking)}"
            for name, classes in asked.items()
            if (lacking := [each for each in classes if each not in counts])
        ]
    return tuple(mistakes)


def classes_of_nodes(flavor: Flavor) -> tuple[str, ...]:
    """The bare-metal classes that the flavor requests. Empty if it also requests VCPU or the like: then it is for
    hypervisors, and its custom classes are devices there.
    """
    amounts = {
        "VCPU": str(flavor.vcpus),
        "MEMORY_MB": str(flavor.ram_mb),
        "DISK_GB": str(flavor.root_gb + flavor.ephemeral_gb),
        **{
            key.removeprefix(RESOURCES): value
            for key, value in flavor.extra_specs.items()
            if key.startswith(RESOURCES) and not value.startswith("preferred")
        },
    }
    asked = [name for name, amount in amounts.items() if amount != "0"]
    return tuple(sorted(asked)) if all(name.startswith(CUSTOM) for name in asked) else ()
