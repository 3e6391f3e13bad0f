"""At the end of the demo: what Ironic, the daemons, placement and the instances' cells say, compared.

Whatever should not be ends the demo with 1. What is said late is waited for; what stays wrong is told.
"""

import asyncio
from collections.abc import Iterator

from bus.topology import DEAD_QUEUE
from moor.demo.metal.stage import Stage
from moor.demo.metal.tally import MetalTally
from moor.load.auditing import all_providers
from moor.load.node_auditing import VIRTUAL_NAME, Said, problems_of
from moor.options import fail, out

PATIENCE_S = 15.0
LOOK_AGAIN_S = 0.3
PROBLEMS_SHOWN = 20


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


def problems_of_the_kill(tally: MetalTally) -> list[str]:
    """That it happened, and that others took over."""
    if not tally.bereaved:
        return ["no daemon was killed that owned any node"]
    if tally.adopted_s is None:
        return [f"nodes of {tally.killed}, which was killed, have no other owner"]
    if tally.reported_s is None:
        return [f"nodes of {tally.killed}, which was killed, were not reported by their new owners"]
    return []


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
