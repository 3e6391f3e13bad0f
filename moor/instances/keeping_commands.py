"""`moor campaign`, `moor question` and `moor budget`: what becomes of many hosts one after the other, what a person must decide, and the limits
on what moves at once.
"""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec
from msgspec import Struct, structs
from rich.console import Group, RenderableType
from rich.live import Live

from engine.places import PLACE_LEVELS_MAX, why_no_place
from keeper.core.grants import wrong_budget
from kit.process import stopped_by_signals
from moor.client import (
    BudgetScope,
    BudgetState,
    CampaignDetails,
    CampaignKind,
    CampaignPlanned,
    CampaignState,
    CampaignWork,
    Client,
    HostMode,
    MoveBudget,
    PlannedMovement,
    Side,
    Then,
)
from moor.client.keeping import EVACUATION_WAIT_S
from moor.flags import argument, option
from moor.instances.move_commands import To
from moor.options import (
    ID,
    NOT_DONE,
    NOT_IN_TIME,
    BusUrl,
    Output,
    fail,
    out,
    say,
    wants_document,
    with_client,
    wrong_value,
)
from moor.resource_commands import check_not_both, commands_of, completes, print_thing
from moor.resources import BUDGET, CAMPAIGN, CELL, HOST, HOSTS_OF_CAMPAIGN, MOVEMENT, QUESTION, WEEKS
from moor.showing import LINES_MAX, grid_of, print_all, print_one
from moor.tables import Columns, Rows, print_table

app = commands_of(CAMPAIGN, "Campaigns: drain, evacuate or restart many hosts, one after the other.")

# `moor balance` begins the others.
Kind = Annotated[
    Literal["drain", "evacuate", "restart"],
    argument(
        metavar="drain|evacuate|restart",
        help="drain: their guests move away. evacuate: the hosts are down, and their guests are built anew elsewhere. restart: their guests "
        "move away, the hook runs, and they are taken back.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    argument(
        metavar="HOST...",
        help="Hosts' names; CELL/NAME if several cells have one.",
        completes=completes(HOST),
    ),
]
Named = Annotated[str, argument(metavar=ID, help="The campaign's name or id.", completes=completes(CAMPAIGN))]


class WorkOptions(Struct, frozen=True):
    cell: Annotated[str, option(help="All hosts of this cell.", completes=completes(CELL))] = ""
    domain: Annotated[
        str, option(metavar="PLACE", help="All hosts in this domain, such as dc1/hall2/row7.")
    ] = ""
    mode: Annotated[HostMode | None, option(help="All hosts that are set so.", show_default=False)] = None
    then: Annotated[
        Then, option(help="What becomes of an empty host. disable: it stays draining. down: it is set down.")
    ] = "disable"
    hook: Annotated[
        str, option(metavar="NAME", help="Of a restart: the program in the keepers' folder of hooks.")
    ] = ""
    hook_timeout: Annotated[
        int, option(metavar="S", min=1, help="So long the hook may run on each host.")
    ] = 1800
    back_within: Annotated[
        int, option(metavar="S", min=1, help="So long a restarted host may take until it is heard again.")
    ] = 1800
    fence: Annotated[
        str,
        option(
            metavar="NAME",
            help="Of an evacuation: the program in the keepers' folder of hooks that makes sure that a host is off.",
        ),
    ] = ""
    fence_timeout: Annotated[
        int,
        option(metavar="S", min=1, help="So long the fence may run on each host; then a person is asked."),
    ] = 120
    at_once: Annotated[int, option(min=1, help="How many hosts are out at the same time.")] = 1
    guests_at_once: Annotated[int, option(min=1, help="How many instances move at the same time.")] = 10
    canary: Annotated[
        int,
        option(min=0, help="So many hosts go before all others; if one of them fails, the campaign stops."),
    ] = 0
    stop_after_failures: Annotated[
        int, option(min=1, help="The campaign stops when so many hosts have failed.")
    ] = 1
    to: To = None
    wait_for_room: Annotated[
        int | None,
        option(
            metavar="S",
            min=0,
            show_default=False,
            help="So long an instance waits for room if no host has it. Default: 0; 86400 to evacuate.",
        ),
    ] = None
    reason: Annotated[str, option(help="Why; the hosts' states and refused builds show it.")] = ""

    def work(self, kind: CampaignKind, hosts: Sequence[str] | None) -> CampaignWork:
        filters = {"cell": self.cell, "domain": self.domain, "mode": self.mode or ""}
        check_not_both(hosts, **filters)
        if not hosts and not any(filters.values()):
            raise click.BadParameter("no host is named: give names, or choose by --cell, --domain or --mode")
        if self.domain and (why := why_no_place(self.domain)):
            raise click.BadParameter(f"--domain is {self.domain!r}: {why}")
        if bool(self.hook) != (kind == "restart"):
            raise click.BadParameter(f"--hook is {self.hook!r}: a restart names one, and nothing else does")
        if self.fence and kind != "evacuate":
            raise click.BadParameter(
                f"--fence is {self.fence!r}: only an evacuation switches hosts off before"
            )
        usual_s = EVACUATION_WAIT_S if kind == "evacuate" else 0
        return CampaignWork(
            kind=kind,
            hosts=tuple(hosts or ()),
            cell=self.cell,
            place=self.domain,
            mode=self.mode or "",
            then=self.then,
            hook=self.hook,
            hook_s=self.hook_timeout,
            whole_s=self.back_within,
            fence=self.fence,
            fence_s=self.fence_timeout,
            at_once=self.at_once,
            guests_at_once=self.guests_at_once,
            canary=self.canary,
            failures_max=self.stop_after_failures,
            to=tuple(self.to or ()),
            wait_s=usual_s if self.wait_for_room is None else self.wait_for_room,
            reason=self.reason,
        )


@app.verb()
def start(
    kind: Kind,
    hosts: Hosts = None,
    bus: BusUrl = "",
    *,
    of_work: WorkOptions,
    name: Annotated[str, option(help="A name for the campaign. Without it, it gets one.")] = "",
    join: Annotated[
        bool, option("--join", help="Leave out hosts that other campaigns have. Without it, nothing begins.")
    ] = False,
    follow: Annotated[bool, option("--follow", help="Show its progress until it has ended.")] = False,
    _output: Output = None,
) -> None:
    """Begin a campaign over hosts: those that are named, or all that the filters choose. It goes on by itself: keepers carry it out.

    With --follow, Ctrl-C ends the command, and the campaign goes on.
    """
    work = of_work.work(kind, hosts)

    async def begin(moor: Client) -> CampaignDetails:
        state = await moor.start_campaign(work, name=name, join=join)
        return await (followed(moor, state) if follow else moor.show_campaign(state.id))

    found = with_client(bus, begin, operates=True)
    print_campaign(found)
    if follow:
        _end(found.campaign)


async def followed(moor: Client, state: CampaignState) -> CampaignDetails:
    with stopped_by_signals() as told:
        if wants_document() or not out.is_terminal:
            return await moor.follow_campaign(state.id, stop=told)
        with Live(console=out, transient=True) as live:
            return await moor.follow_campaign(
                state.id, tell=lambda found: live.update(_progress_of(found)), stop=told
            )


def _progress_of(found: CampaignDetails) -> RenderableType:
    """The campaign, and its hosts that are out or failed."""
    shown = [each for each in found.hosts if each.stage not in ("waiting", "done")][:LINES_MAX]
    return Group(Rows((found.campaign,), CAMPAIGN.columns), Rows(shown, HOSTS_OF_CAMPAIGN))


def _end(campaign: CampaignState) -> None:
    """End the command with an error unless the campaign is done, with all its hosts."""
    if campaign.life in ("running", "paused"):
        fail(f"campaign {campaign.name} goes on: `moor campaign show {campaign.name}` shows it", NOT_IN_TIME)
    if campaign.life != "done" or campaign.reason:
        fail(f"campaign {campaign.name} is {campaign.life}: {campaign.reason}")


@app.verb()
def plan(
    kind: Kind, hosts: Hosts = None, bus: BusUrl = "", *, of_work: WorkOptions, _output: Output = None
) -> None:
    """Show what a campaign would do now: which guests would move where, which would stay and why, and how long it would take. Nothing moves.

    Exit code 1 if a guest would stay.
    """
    work = of_work.work(kind, hosts)
    found = with_client(bus, lambda moor: moor.plan_campaign(work))
    print_one(found, _print_plan)
    if found.fit < found.guests:
        raise click.exceptions.Exit(NOT_DONE)


PLANNED = Columns[PlannedMovement](
    {
        "instance": lambda each: str(each.instance),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "from": lambda each: each.host,
        "to": lambda each: each.to,
        "why it stays": lambda each: each.reason,
    },
    prose=("why it stays",),
    ids={"instance": lambda _: True},
)


def _print_plan(found: CampaignPlanned) -> None:
    print_table(found.hosts, HOSTS_OF_CAMPAIGN)
    if found.movements:
        out.print()
        print_table(found.movements, PLANNED)
    left_out = "; others were not planned" if found.more else ""
    say(f"{found.fit:,} of {found.guests:,} guests find a place{left_out}")
    if found.seconds is not None:
        limit = f"; it waits most for {found.limit}" if found.limit else ""
        say(f"about {timedelta(seconds=found.seconds)} at the rate of the latest movements{limit}")


@app.verb()
def show(name: Named, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show a campaign, and how far each of its hosts is."""
    print_campaign(with_client(bus, lambda moor: moor.show_campaign(name)))


def print_campaign(found: CampaignDetails) -> None:
    def print_both(each: CampaignDetails) -> None:
        out.print(grid_of(*CAMPAIGN.facts(each.campaign)))
        if each.hosts:
            out.print()
            print_table(each.hosts, HOSTS_OF_CAMPAIGN)

    print_one(found, print_both, CAMPAIGN.columns.of(lambda each: each.campaign))


@app.verb()
def pause(name: Named, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Have a campaign begin nothing more until it is resumed. What moves goes on."""
    print_thing(CAMPAIGN, with_client(bus, lambda moor: moor.pause_campaign(name), operates=True))


@app.verb()
def resume(name: Named, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Have a paused campaign go on."""
    print_thing(CAMPAIGN, with_client(bus, lambda moor: moor.resume_campaign(name), operates=True))


@app.verb()
def cancel(name: Named, bus: BusUrl = "", *, _output: Output = None) -> None:
    """End a campaign. What moves goes on, and the hosts stay as they are: those that were emptied stay draining or down."""
    print_thing(CAMPAIGN, with_client(bus, lambda moor: moor.cancel_campaign(name), operates=True))


@app.verb()
def report(
    bus: BusUrl = "",
    *,
    weeks: Annotated[int, option(min=1, max=52, help="The last so many weeks.")] = 12,
    _output: Output = None,
) -> None:
    """Show what keepers have done by themselves, week by week: hosts that were lost and recovered, how fast, and what balances have gained."""
    print_all(with_client(bus, lambda moor: moor.keeping_weeks(weeks)), WEEKS)


movements_app = commands_of(MOVEMENT, "Movements: what moves by campaigns, and what was given up and why.")
movements_app.without_verb(movements_app.commands["list"])
app.verb("movements")(movements_app)

# `moor question`

questions_app = commands_of(QUESTION, "Questions of keepers: what they must not decide alone.")


@questions_app.verb()
def answer(
    question: Annotated[str, argument(metavar=ID, help="The question's id.", completes=completes(QUESTION))],
    answer: Annotated[str, argument(metavar="ANSWER", help="One of its answers.")],
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Answer a question: `moor question show ID` says what each answer does. One that does not matter any more is refused."""
    print_thing(
        QUESTION, with_client(bus, lambda moor: moor.answer_question(question, answer), operates=True)
    )


# `moor budget`

budget_app = commands_of(BUDGET, "Budgets: limits on what moves at once by campaigns.")


class BudgetOptions(Struct, frozen=True):
    scope: Annotated[
        BudgetScope | None,
        option(help="Whose movements are counted together.", show_default=False),
    ] = None
    of: Annotated[
        str,
        option(metavar="NAME", help="Only of this cell, place, host, project or group. Without it, of each."),
    ] = ""
    level: Annotated[
        int,
        option(min=0, max=PLACE_LEVELS_MAX, help="Of domains: those of this level; dc1/hall2 is of level 2."),
    ] = 0
    side: Annotated[
        Side, option(help="Only what leaves (out), or only what comes (in).", show_default=False)
    ] = ""
    at_once: Annotated[
        int | None, option(metavar="N", min=1, help="At most so many movements at once.", show_default=False)
    ] = None
    per_hour: Annotated[
        int | None, option(metavar="N", min=1, help="At most so many begin in an hour.", show_default=False)
    ] = None
    alive_min: Annotated[
        int | None,
        option(
            metavar="N",
            min=1,
            help="Of a group: so many members stay active where they are.",
            show_default=False,
        ),
    ] = None
    quiet: Annotated[
        list[str] | None,
        option(metavar="HH:MM-HH:MM", help="Nothing begins in this time of day (UTC); may be repeated."),
    ] = None


@budget_app.verb("set")
def set_budgets(
    name: Annotated[
        str, argument(metavar="NAME", help="The budget's name.", completes=completes(BUDGET))
    ] = "",
    bus: BusUrl = "",
    *,
    limits: BudgetOptions,
    file: Annotated[
        Path | None,
        option(
            metavar="FILE",
            show_default=False,
            help="Set all budgets of a TOML file. Each is a table of the budget's name, with these options as keys.",
        ),
    ] = None,
    _output: Output = None,
) -> None:
    """Create a budget, or replace the one of its name; or all that a file has. It counts from the next movement that begins."""
    given = {field: value for field, value in structs.asdict(limits).items() if value not in (None, "", 0)}
    if file is None:
        budgets = [_budget(name, given, "the command line")]
    elif name or given:
        raise click.BadParameter(f"--file is {str(file)!r}, and has whole budgets: nothing else can be given")
    else:
        budgets = _budgets_in(file)

    async def work(moor: Client) -> list[BudgetState]:
        return [await moor.set_budget(each) for each in budgets]

    print_all(with_client(bus, work, operates=True), BUDGET.columns, "nothing was set")


class _Written(MoveBudget, frozen=True, forbid_unknown_fields=True):
    """A budget as a file or the command line has it."""


def _budgets_in(file: Path) -> list[MoveBudget]:
    with wrong_value(f"--file is {str(file)!r}: ", OSError):
        tables = msgspec.convert(tomllib.loads(file.read_text()), dict[str, dict[str, Any]])
    return [_budget(name, table, f"--file {file}") for name, table in tables.items()]


def _budget(name: str, given: Mapping[str, Any], where: str) -> MoveBudget:
    with wrong_value(f"{where}: budget {name}: ", msgspec.ValidationError):
        budget = msgspec.convert({**given, "name": name}, _Written)
    # Each of a file is judged before the first one is set.
    if wrong := wrong_budget(budget):
        field, value, why = wrong
        raise click.BadParameter(f"{where}: budget {name}: {field} is {value!r}: {why}")
    return budget
