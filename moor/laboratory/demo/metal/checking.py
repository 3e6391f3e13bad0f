"""The end of the demo: prints what was heard. Any problem in the books or of the kill ends the demo with exit code 1."""

from collections.abc import Iterator, Sequence

from moor.laboratory.demo.checking import print_end
from moor.laboratory.demo.metal.tally import VIRTUAL_NAME, MetalTally
from moor.options import out


def conclude(tally: MetalTally, found: Sequence[str]) -> None:
    """Print the results of the demo, and the problems that were found at its end."""
    out.print()
    print_end([*found, *problems_of_the_kill(tally)], _checked(tally))


def problems_of_the_kill(tally: MetalTally) -> list[str]:
    """Problems of the kill: a daemon with nodes must have been killed, and others must have reported its nodes."""
    if not tally.orphaned:
        return ["no daemon that owned nodes was killed"]
    if tally.taken_over_s is None:
        return [f"nodes of the killed daemon {tally.killed} have no new owner"]
    if tally.reported_s is None:
        return [f"nodes of the killed daemon {tally.killed} were not reported by their new owners"]
    return []


def _checked(tally: MetalTally) -> Iterator[str]:
    active = [
        each for id_, each in tally.states.items() if each.state == "active" and id_ not in tally.deleted
    ]
    nodes = sum(not each.name.startswith(VIRTUAL_NAME) for each in active)
    yield (
        f"all {tally.wanted:,} requests ended: {tally.count('active'):,} active, {tally.count('error')} in error; "
        f"{len(tally.needed_alternates)} took an alternate"
    )
    yield f"{nodes} instances are each alone on a node, and {len(active) - nodes} on hypervisors"
    yield f"no node has an unknown instance; the nodes of {len(tally.deleted)} deleted instances are clean"
    yield (
        f"after {tally.flips} maintenance flips, placement offers exactly the nodes that Ironic has available, of "
        f"{len(tally.rows)}"
    )
    yield (
        f"{tally.killed} was killed: its {len(tally.orphaned)} nodes had new owners after {tally.taken_over_s or 0:.1f} s, and "
        f"were reported by them after {tally.reported_s or 0:.1f} s"
    )
    yield "the books of placement, the API level and the cells agree, and there are no dead letters"
