"""`moor policy`: what keepers do by themselves."""

from typing import Annotated, Any, Literal

import click
from msgspec import Struct, structs

from engine.goals import BalanceGoal
from engine.places import PLACE_LEVELS_MAX
from keeper.core.policies import RESTARTS_MAX, SECONDS_MAX, wrong_policy
from moor.client import KeepingPolicy, LostGuests, PolicyScope
from moor.flags import argument, option
from moor.options import ID, BusUrl, Output, with_client
from moor.resource_commands import commands_of, completes, print_thing
from moor.resources import INSTANCE, POLICY, POLICY_VALUES
from moor.showing import print_all

app = commands_of(POLICY, "Policies: what keepers do by themselves for lost hosts and dead guests.")

Scope = Annotated[
    PolicyScope,
    argument(
        metavar="cloud|cell|domain|aggregate|project|flavor",
        help="What the policy is for. Of two policies the narrower counts: of a flavor before that of a project, and so on.",
    ),
]
Of = Annotated[str, argument(metavar="NAME", help="Its name; of a domain its path, such as dc1/hall2.")]


class PolicyOptions(Struct, frozen=True):
    guests: Annotated[
        LostGuests | None,
        option(
            help="Guests of a lost host: built anew elsewhere, started again when the host is back, or left as they are.",
            show_default=False,
        ),
    ] = None
    restarts: Annotated[
        int | None,
        option(
            metavar="N",
            min=0,
            max=RESTARTS_MAX,
            help="How often a guest that dies on a living host is started again.",
            show_default=False,
        ),
    ] = None
    after_s: Annotated[
        int | None,
        option(
            metavar="SECONDS",
            min=0,
            max=SECONDS_MAX,
            help="After how long without a heartbeat a host is lost, if that is longer than hosts take to count as down.",
            show_default=False,
        ),
    ] = None
    fence: Annotated[
        str | None,
        option(
            metavar="PROGRAM",
            help="A program of the keepers' folder of hooks that switches a lost host off.",
            show_default=False,
        ),
    ] = None
    fence_s: Annotated[
        int | None,
        option(metavar="SECONDS", min=1, max=SECONDS_MAX, help="How long that may take.", show_default=False),
    ] = None
    unfenced: Annotated[
        str | None,
        option(
            metavar="REASON",
            help="Why a lost host need not be switched off, such as leases on its storage.",
            show_default=False,
        ),
    ] = None
    lost_max: Annotated[
        int | None,
        option(
            metavar="N",
            min=0,
            help="If more hosts of a cell or domain than this are lost within an hour, a person is asked about all of them.",
            show_default=False,
        ),
    ] = None
    level: Annotated[
        int | None,
        option(
            min=0,
            max=PLACE_LEVELS_MAX,
            help="With --lost-max: count the hosts of each domain of this level together, in place of those of a cell.",
            show_default=False,
        ),
    ] = None
    rehearse: Annotated[
        Literal["yes", "no"] | None,
        option(help="Only note what would be done.", show_default=False),
    ] = None
    balance: Annotated[
        BalanceGoal | None,
        option(
            help="Have a plan with this goal carried out again and again: `moor balance plan` shows it.",
            show_default=False,
        ),
    ] = None
    every_s: Annotated[
        int | None,
        option(
            metavar="SECONDS", min=1, max=SECONDS_MAX, help="How often. Default: 3600.", show_default=False
        ),
    ] = None
    gain_min: Annotated[
        int | None,
        option(
            metavar="PERCENT",
            min=0,
            max=100,
            help="Only if it gains so much. Default: 10.",
            show_default=False,
        ),
    ] = None
    rest_s: Annotated[
        int | None,
        option(
            metavar="SECONDS",
            min=0,
            help="A guest that has moved within this time stays. Default: 86400.",
            show_default=False,
        ),
    ] = None


@app.verb("set")
def set_policy(
    scope: Scope, of: Of = "", bus: BusUrl = "", *, says: PolicyOptions, _output: Output = None
) -> None:
    """Create a policy, or replace the one that is there. The next wider one says what this one leaves out."""
    given: dict[str, Any] = structs.asdict(says)
    rehearse = None if says.rehearse is None else says.rehearse == "yes"
    policy = KeepingPolicy(scope=scope, of=of, **{**given, "rehearse": rehearse})
    if wrong := wrong_policy(policy):
        field, value, why = wrong
        raise click.BadParameter(f"{field} is {value!r}: {why}")
    print_thing(POLICY, with_client(bus, lambda moor: moor.set_policy(policy), operates=True))


@app.verb()
def delete(scope: Scope, of: Of = "", bus: BusUrl = "", *, _output: Output = None) -> None:
    """Delete the policy that this has."""
    print_thing(POLICY, with_client(bus, lambda moor: moor.delete_policy(scope, of), operates=True))


@app.verb()
def show(
    instance: Annotated[
        str, argument(metavar=ID, help="The instance's name or id.", completes=completes(INSTANCE))
    ],
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Show what counts for an instance on its host, and which policy says it."""
    print_all(with_client(bus, lambda moor: moor.policy_of(instance), operates=True), POLICY_VALUES)
