"""The end of the demo: compares what Ironic, the daemons, placement and the instances' cells report.

The check waits up to PATIENCE_S for late updates. Any remaining problem is printed and ends the demo with exit code 1.
"""

import asyncio
from collections.abc import Iterator

from bus.topology import DEAD_QUEUE
from moor.demo.metal.clouds import DemoCloud
from moor.demo.metal.tally import MetalTally
from moor.load.auditing import all_providers
from moor.load.node_auditing import VIRTUAL_NAME, Reported, problems_of
from moor.options import fail, out

PATIENCE_S = 15.0
LOOK_AGAIN_S = 0.3
PROBLEMS_SHOWN = 20


async def conclude(cloud: DemoCloud, tally: MetalTally) -> None:
    by_s = asyncio.get_running_loop().time() + PATIENCE_S
    reported = await _reported(cloud, tally)
    while (problems := [*problems_of(reported)]) and asyncio.get_running_loop().time() < by_s:
        await asyncio.sleep(LOOK_AGAIN_S)
        reported = await _reported(cloud, tally)
    problems += problems_of_the_kill(tally)
    out.print()
    if problems:
        more = [f"and {len(problems) - PROBLEMS_SHOWN} more"] if len(problems) > PROBLEMS_SHOWN else []
        fail("the demo found problems:\n" + "\n".join([*problems[:PROBLEMS_SHOWN], *more]))
    for checked in _checked(tally, reported):
        out.print(f"[green]✓[/green] {checked}", highlight=False)


def problems_of_the_kill(tally: MetalTally) -> list[str]:
    """A daemon that owned nodes was killed, and other daemons took over and reported its nodes."""
    if not tally.orphaned:
        return ["no daemon that owned nodes was killed"]
    if tally.taken_over_s is None:
        return [f"nodes of the killed daemon {tally.killed} have no new owner"]
    if tally.reported_s is None:
        return [f"nodes of the killed daemon {tally.killed} were not reported by their new owners"]
    return []


def _checked(tally: MetalTally, reported: Reported) -> Iterator[str]:
    active = [each for each in reported.instances.values() if each.state == "active"]
    nodes = sum(not each.name.startswith(VIRTUAL_NAME) for each in active)
    yield (
        f"all {reported.wanted:,} requests ended: {tally.count('active'):,} active, {tally.count('error')} in error; "
        f"{len(tally.needed_alternates)} took an alternate"
    )
    yield f"{nodes} instances are each alone on a node, and {len(active) - nodes} on hypervisors"
    yield f"no node has an unknown instance; the nodes of {len(tally.deleted)} deleted instances are clean"
    yield (
        f"after {tally.flips} maintenance flips, placement offers exactly the nodes that Ironic has available, of "
        f"{len(reported.ironic)}"
    )
    yield (
        f"{tally.killed} was killed: its {len(tally.orphaned)} nodes had new owners after {tally.taken_over_s or 0:.1f} s, and "
        f"were reported by them after {tally.reported_s or 0:.1f} s"
    )
    yield "placement's books are consistent, and there are no dead letters"


async def _reported(cloud: DemoCloud, tally: MetalTally) -> Reported:
    ironic = {node.id: node async for page in cloud.api.pages() for node in page.nodes}
    owned = await cloud.rows.owners()
    return Reported(
        wanted=tally.wanted,
        ended=tally.count("active") + tally.count("error"),
        instances={id_: state for id_, state in tally.states.items() if id_ not in tally.deleted},
        ironic=ironic,
        rows=await cloud.rows.read([each.id for each in owned]),
        providers={each.id: each async for each in all_providers(cloud.client)},
        alive=[each.name for each in await cloud.rows.members() if each.is_alive],
        books=await cloud.audit(),
        dead_letters=await cloud.connection.depth(DEAD_QUEUE),
    )
