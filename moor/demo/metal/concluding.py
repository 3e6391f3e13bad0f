"""At the end of the demo: what Ironic, the daemons, placement and the instances' cells say, compared.

Whatever should not be ends the demo with 1. What is said late is waited for; what stays wrong is told.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import InstanceId, InstanceState
from bus.messages.placement import ProviderState
from bus.topology import DEAD_QUEUE
from ironic_sync.core.node import Node
from ironic_sync.core.offers import class_of, is_available
from ironic_sync.core.rows import NodeRow
from moor.demo.metal.stage import Stage
from moor.demo.metal.tally import VIRTUAL_NAME, MetalTally
from moor.load.auditing import all_providers
from moor.options import fail, out

PATIENCE_S = 15.0
LOOK_AGAIN_S = 0.3
PROBLEMS_SHOWN = 20


class Said(Struct, frozen=True, kw_only=True):
    """By everybody, at the end. `instances` are those that were not deleted."""

    wanted: int
    ended: int
    instances: Mapping[InstanceId, InstanceState]
    ironic: Mapping[ProviderId, Node]
    rows: Mapping[ProviderId, NodeRow]
    providers: Mapping[ProviderId, ProviderState]
    alive: Sequence[str]
    books: Sequence[str] = ()
    dead_letters: int = 0


async def conclude(stage: Stage, tally: MetalTally) -> None:
    by_s = asyncio.get_running_loop().time() + PATIENCE_S
    said = await _said(stage, tally)
    while (problems := [*problems_of(said)]) and asyncio.get_running_loop().time() < by_s:
        await asyncio.sleep(LOOK_AGAIN_S)
        said = await _said(stage, tally)
    problems += problems_of_the_kill(tally)
    out.print()
    if problems:
        more = [f"and {len(problems) - PROBLEMS_SHOWN} more"] if len(problems) > PROBLEMS_SHOWN else []
        fail("something is not as it must be:\n" + "\n".join([*problems[:PROBLEMS_SHOWN], *more]))
    for checked in _checked(tally, said):
        out.print(f"[green]✓[/green] {checked}", highlight=False)


def problems_of(said: Said) -> Iterator[str]:
    yield from said.books
    if said.ended != said.wanted:
        yield f"{said.wanted} requests were made, and {said.ended} ended"
    if said.dead_letters:
        yield f"{said.dead_letters} parcels are among the dead letters"
    yield from _of_instances(said)
    yield from _of_nodes(said)
    yield from _of_owners(said)


def problems_of_the_kill(tally: MetalTally) -> list[str]:
    """That it happened, and that others took over."""
    if not tally.bereaved:
        return ["no daemon was killed that owned any node"]
    if tally.adopted_s is None:
        return [f"nodes of {tally.killed}, which was killed, have no other owner"]
    if tally.reported_s is None:
        return [f"nodes of {tally.killed}, which was killed, were not reported by their new owners"]
    return []


def _of_instances(said: Said) -> Iterator[str]:
    """Each active instance is where its cell says, on a node or on a hypervisor as it asked."""
    for id_, state in sorted(said.instances.items()):
        if state.state != "active":
            continue
        node = next((each for each in said.ironic.values() if str(each.id) == state.host), None)
        if (node is None) != state.name.startswith(VIRTUAL_NAME):
            kind = "a hypervisor" if node is None else "a bare-metal node"
            yield f"instance {state.name} is on {state.host}, which is {kind}"
        elif node is not None and (node.instance_uuid != id_ or node.provision_state != "active"):
            yield (
                f"instance {state.name} is active on node {node.name}, and Ironic has instance {node.instance_uuid} there, "
                f"in state {node.provision_state!r}"
            )


def _of_nodes(said: Said) -> Iterator[str]:
    """Ironic has no instance that nobody asked for; placement offers what Ironic has to offer, and nothing is held in vain."""
    for node in said.ironic.values():
        state = None if node.instance_uuid is None else said.instances.get(InstanceId(node.instance_uuid))
        if node.instance_uuid is not None and (state is None or state.state != "active"):
            why = "deleted, or never asked for" if state is None else state.state
            yield f"node {node.name} has instance {node.instance_uuid}, which is {why}"
        provider = said.providers.get(node.id)
        stock = provider.inventories.get(class_of(node.resource_class)) if provider else None
        if stock is None:
            yield f"node {node.name} has no inventory in placement"
            continue
        if (stock.reserved == 0) != is_available(node):
            yield (
                f"node {node.name} is {node.provision_state!r} in Ironic, and placement has {stock.reserved} of "
                f"{stock.total} reserved"
            )
        if stock.used != int(state is not None and state.state == "active"):
            yield f"node {node.name}: {stock.used} are in use, and instance {node.instance_uuid} is on it"


def _of_owners(said: Said) -> Iterator[str]:
    for id_, node in said.ironic.items():
        row = said.rows.get(id_)
        if row is None or row.owner not in said.alive:
            yield f"node {node.name} is owned by {row.owner or 'nobody' if row else 'nobody'}, which is not alive"
        elif row.read_epoch != row.epoch:
            yield f"node {node.name} was not reported by {row.owner}, which owns it"


def _checked(tally: MetalTally, said: Said) -> Iterator[str]:
    active = [each for each in said.instances.values() if each.state == "active"]
    nodes = sum(not each.name.startswith(VIRTUAL_NAME) for each in active)
    yield (
        f"all {said.wanted:,} requests ended: {tally.count('active'):,} active, {tally.count('error')} in error; "
        f"{len(tally.needed_alternates)} took an alternate"
    )
    yield f"{nodes} instances are each alone on a node, and {len(active) - nodes} on hypervisors"
    yield f"no node has an instance that nobody asked for; {len(tally.deleted)} deleted ones left theirs clean"
    yield f"after {tally.flips} flips, placement offers what Ironic has to offer, on all {len(said.ironic)} nodes"
    yield (
        f"{tally.killed} was killed: its {len(tally.bereaved)} nodes had new owners after {tally.adopted_s or 0:.1f} s, and "
        f"were reported by them after {tally.reported_s or 0:.1f} s"
    )
    yield "placement's books agree with themselves, and no letter is dead"


async def _said(stage: Stage, tally: MetalTally) -> Said:
    ironic = {node.id: node async for page in stage.api.pages() for node in page.nodes}
    owned = await stage.rows.owners()
    return Said(
        wanted=tally.wanted,
        ended=tally.count("active") + tally.count("error"),
        instances={id_: state for id_, state in tally.states.items() if id_ not in tally.deleted},
        ironic=ironic,
        rows=await stage.rows.read([each.id for each in owned]),
        providers={each.id: each async for each in all_providers(stage.client)},
        alive=[each.name for each in await stage.rows.members() if each.is_alive],
        books=await stage.audit(),
        dead_letters=await stage.connection.depth(DEAD_QUEUE),
    )
