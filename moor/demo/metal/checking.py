"""The end of the demo: compares what Ironic, the daemons, placement and the instances' cells report.

The check waits for late updates. Any remaining problem is printed and ends the demo with exit code 1.
"""

from collections.abc import Iterator

from moor.clouds.temporary_cloud import TemporaryCloud
from moor.demo.checking import print_end
from moor.demo.metal.tally import MetalTally
from moor.load.auditing import problems_left
from moor.load.node_auditing import VIRTUAL_NAME, Reported, problems_of, reported_by
from moor.options import out


async def conclude(cloud: TemporaryCloud, tally: MetalTally) -> None:
    async def problems() -> list[str]:
        return [*problems_of(await _reported(cloud, tally))]

    found = [*await problems_left(problems), *problems_of_the_kill(tally)]
    out.print()
    print_end(found, _checked(tally, await _reported(cloud, tally)))


def problems_of_the_kill(tally: MetalTally) -> list[str]:
    """Problems of the kill: a daemon with nodes must have been killed, and others must have reported its nodes."""
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
    yield "the books of placement, the API level and the cells agree, and there are no dead letters"


async def _reported(cloud: TemporaryCloud, tally: MetalTally) -> Reported:
    return await reported_by(
        cloud,
        wanted=tally.wanted,
        ended=tally.count("active") + tally.count("error"),
        instances={id_: state for id_, state in tally.states.items() if id_ not in tally.deleted},
    )
