"""`moor balance`: hosts that are used alike, or as few as possible: what a plan would move, and what it gains."""

from collections.abc import Callable, Mapping
from typing import Annotated

import click
from msgspec import Struct

from engine.goals import BalanceFigures, BalanceGoal
from engine.places import why_no_place
from moor.client import CampaignPlanned, CampaignWork, Client, PlannedMovement
from moor.flags import Commands, option
from moor.instances.keeping_commands import followed, print_campaign
from moor.options import BusUrl, Output, out, say, with_client
from moor.resource_commands import completes
from moor.resources import CELL
from moor.showing import grid_of, print_one
from moor.tables import Columns, print_table

app = Commands("Balance: have guests moved so that hosts are used alike, or so that some are empty.")

MOVES_MAX = 1000


class BalanceOptions(Struct, frozen=True):
    goal: Annotated[
        BalanceGoal,
        option(
            help="even: all hosts are used alike. fill: as many as possible are empty. room: no host has memory left and no processor, or the "
            "other way round. ratio: none has more than its capacity. rules: server groups are as their rules say."
        ),
    ] = "even"
    cell: Annotated[str, option(help="Only hosts of this cell.", completes=completes(CELL))] = ""
    domain: Annotated[str, option(metavar="PLACE", help="Only hosts in this domain.")] = ""
    moves: Annotated[int, option(metavar="N", min=1, max=MOVES_MAX, help="At most so many guests move.")] = (
        100
    )
    rest: Annotated[
        int, option(metavar="S", min=0, help="A guest that has moved within so many seconds stays.")
    ] = 86_400
    guests_at_once: Annotated[int, option(min=1, help="How many instances move at the same time.")] = 10
    reason: Annotated[str, option(help="Why.")] = ""

    def work(self) -> CampaignWork:
        if self.domain and (why := why_no_place(self.domain)):
            raise click.BadParameter(f"--domain is {self.domain!r}: {why}")
        return CampaignWork(
            kind="balance",
            goal=self.goal,
            cell=self.cell,
            place=self.domain,
            moves_max=self.moves,
            rest_s=self.rest,
            guests_at_once=self.guests_at_once,
            failures_max=MOVES_MAX,
            reason=self.reason,
        )


STEPS = Columns[PlannedMovement](
    {
        "instance": lambda each: str(each.instance),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "from": lambda each: each.host,
        "to": lambda each: each.to,
        "gain": lambda each: f"{each.gain:.4f}" if each.gain else "",
        "costs": lambda each: (
            f"{each.memory_mb:,} MB to copy" if each.live else "" if each.reason else "nothing runs"
        ),
        "why it stays": lambda each: "" if each.gain else each.reason,
    },
    prose=("why it stays",),
    ids={"instance": lambda _: True},
)
FIGURES: Mapping[str, Callable[[BalanceFigures], str]] = {
    "hosts": lambda each: f"{each.hosts:,}",
    "empty": lambda each: f"{each.empty:,}",
    "fullest": lambda each: f"{100 * each.peak:.1f} %",
    "spread": lambda each: f"{100 * each.spread:.1f} points",
    "stranded": lambda each: f"{100 * each.stranded:.1f} %",
    "more than their capacity": lambda each: f"{each.overfull:,}",
    "members against rules": lambda each: f"{each.broken:,}",
}


@app.verb()
def plan(bus: BusUrl = "", *, options: BalanceOptions, _output: Output = None) -> None:
    """Show which guests would move where, what each gains and costs, and what the hosts are like before and after. Nothing moves."""
    work = options.work()
    print_one(with_client(bus, lambda moor: moor.plan_campaign(work)), _print_plan)


def _print_plan(found: CampaignPlanned) -> None:
    if found.movements:
        print_table(found.movements, STEPS)
        out.print()
    before, after = found.before or BalanceFigures(), found.after or BalanceFigures()
    facts = {
        name: told(before) if told(before) == told(after) else f"{told(before)} → {told(after)}"
        for name, told in FIGURES.items()
    }
    out.print(grid_of(*facts.items()))
    copied = sum(each.memory_mb for each in found.movements if each.live and each.gain)
    say(f"{found.fit:,} of {found.guests:,} guests would move, and {copied:,} MB be copied")


@app.verb()
def run(
    bus: BusUrl = "",
    *,
    options: BalanceOptions,
    name: Annotated[str, option(help="A name for the campaign. Without it, it gets one.")] = "",
    follow: Annotated[bool, option("--follow", help="Show its progress until it has ended.")] = False,
    _output: Output = None,
) -> None:
    """Make a plan, and begin a campaign that carries it out. Each step is judged again before it is made; what gains nothing any more is left out."""
    work = options.work()

    async def begin(moor: Client) -> None:
        state = await moor.start_campaign(work, name=name)
        print_campaign(await (followed(moor, state) if follow else moor.show_campaign(state.id)))

    with_client(bus, begin, operates=True)
