"""A cell as a value, and its cases as tables: each step is something that a conductor hears, beside the words for all that it then
says and asks.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal
from uuid import UUID, uuid5

from msgspec import structs

from bus.message import Message
from bus.messages.audit import AdoptedState
from bus.messages.build import AlternatesSpent, InstanceState, Move, MoveKind, Rebuild
from bus.messages.cell import (
    AdoptInCell,
    AttemptMessage,
    BuildOrder,
    DeployProgressed,
    DestroyInstance,
    EndMoveInCell,
    GiveBackInCell,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    MoveInCell,
    PlaceInCell,
    RebuildInCell,
    RemoveFromCell,
    SpawnFailed,
)
from bus.messages.hosts import SetHostInCell
from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from cell_conductor.core.books import entry_of
from cell_conductor.core.decide import Due, HostsLost, Input, decide
from cell_conductor.core.rows import (
    ALL_UP,
    CellHost,
    ConductorRules,
    DrawId,
    HostStates,
    Instance,
    Question,
    SwapAnswered,
)
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.hosts import NODE, HostMode, HostSetting
from engine.inventories import Choice, ConsumerId, ProviderId, ResourceAmount, Share
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict, DoesNotFit, Shortfall

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = ConductorRules(
    cell="c1",
    attempt_timeout=timedelta(seconds=60),
    destroy_timeout=timedelta(seconds=30),
    deploy_timeout=timedelta(seconds=2700),
    undeploy_timeout=timedelta(seconds=1800),
    remind_every=timedelta(seconds=100),
    ask_lease=timedelta(seconds=10),
    retry_delay_first=timedelta(seconds=1),
    retry_delay_max=timedelta(seconds=5),
    kept_after_end=timedelta(seconds=1000),
)
ONE = InstanceId(ConsumerId(UUID(int=1)))
CLAIMED = Claimed()


def host(name: str) -> ProviderId:
    return ProviderId(uuid5(ONE, name))


HOSTS = {host(name): name for name in [f"{kind}{number}" for kind in "hn" for number in range(10)]}
FULL = DoesNotFit(shortfalls=(Shortfall(provider=host("h9"), resource="VCPU", asked=2, free=1),))


def choice(name: str, *, kind: str = "", amount: int = 2, of: str = "") -> Choice:
    amounts = (ResourceAmount(provider=host(of or name), resource="VCPU", amount=amount),)
    return Choice(name=name, share=Share(host=host(name), amounts=amounts), kind=kind)


def a_node(name: str) -> Choice:
    return choice(name, kind=NODE)


def granted(attempt: int, held: Choice) -> AlreadyClaimed:
    return AlreadyClaimed(attempt=attempt, share=held.share)


# Orders of the API level.


def place(*alternates: str, ends_in_s: float = 600, **changes: Any) -> PlaceInCell:
    order = PlaceInCell(
        cell="c1",
        instance=ONE,
        request_id=RequestId(UUID(int=100)),
        sequence=2,
        attempt=1,
        issued_at=NOON,
        ends_by=NOON + timedelta(seconds=ends_in_s),
        flavor=Flavor(vcpus=2),
        chosen=choice("h1"),
        alternates=tuple(choice(each) for each in alternates),
    )
    return structs.replace(order, **changes)


def place_on_node(*alternates: Choice, ends_in_s: float = 7_200, **changes: Any) -> PlaceInCell:
    return place(ends_in_s=ends_in_s, chosen=a_node("n1"), alternates=alternates, **changes)


def adopt(
    state: AdoptedState = "active", *, attempt: int = 1, reason: str = "", on_node: bool = False
) -> AdoptInCell:
    order = place_on_node() if on_node else place()
    return AdoptInCell(**structs.asdict(order) | {"attempt": attempt}, state=state, reason=reason)


REMOVE = RemoveFromCell(
    cell="c1", instance=ONE, request_id=RequestId(UUID(int=100)), sequence=3, issued_at=NOON
)
GIVE_BACK = GiveBackInCell(**structs.asdict(REMOVE))


def move(
    kind: MoveKind = "migrate",
    *choices: str,
    confirm_s: int | None = None,
    number: int = 50,
    flavor: Flavor | None = None,
    asked: Literal["", "confirm", "revert", "abort"] = "",
    source_epoch: int | None = None,
) -> MoveInCell:
    wait_s = 100 if kind in ("migrate", "resize") else 0
    return MoveInCell(
        cell="c1",
        instance=ONE,
        move=Move(
            request_id=RequestId(UUID(int=500)),
            number=number,
            kind=kind,
            source="h1",
            ends_by=NOON + timedelta(seconds=1000),
            confirm_s=wait_s if confirm_s is None else confirm_s,
            flavor=flavor,
            asked=asked,
            source_epoch=source_epoch,
        ),
        choices=tuple(choice(each) for each in choices or ("h2",)),
    )


def end(
    how: Literal["confirm", "revert", "abort"], kind: MoveKind = "migrate", number: int = 50
) -> EndMoveInCell:
    order = move(kind, number=number, asked=how)
    return EndMoveInCell(cell="c1", instance=ONE, move=order.move, sequence=60)


def rebuild(number: int = 150, *, ends_in_s: float = 7_200, **changes: Any) -> RebuildInCell:
    ordered = Rebuild(
        request_id=RequestId(UUID(int=number)),
        number=number,
        image=Image(source="fedora"),
        ends_by=NOON + timedelta(seconds=ends_in_s),
    )
    return RebuildInCell(cell="c1", instance=ONE, rebuild=structs.replace(ordered, **changes))


# Reports of hosts.


def spawned(attempt: int, name: str, *, number: int = 0, kind: str = "") -> InstanceSpawned:
    return InstanceSpawned(
        cell="c1", instance=ONE, attempt=attempt, host=host(name), number=number, kind=kind
    )


def failed(attempt: int, name: str, *, number: int = 0) -> SpawnFailed:
    return SpawnFailed(
        cell="c1", instance=ONE, attempt=attempt, host=host(name), reason="no image", number=number
    )


def destroyed(attempt: int, name: str) -> InstanceDestroyed:
    return InstanceDestroyed(cell="c1", instance=ONE, attempt=attempt, host=host(name))


def destroy(attempt: int, name: str) -> DestroyInstance:
    return DestroyInstance(cell="c1", instance=ONE, attempt=attempt, host=host(name))


def stopped(attempt: int, name: str, failure: str = "", number: int = 50, **more: Any) -> InstanceStopped:
    return InstanceStopped(
        cell="c1", instance=ONE, attempt=attempt, host=host(name), failure=failure, number=number, **more
    )


def redeployed(
    number: int = 150, failure: str = "", *, is_active: bool | None = None, attempt: int = 1, name: str = "h1"
) -> InstanceRedeployed:
    return InstanceRedeployed(
        cell="c1",
        instance=ONE,
        attempt=attempt,
        host=host(name),
        number=number,
        failure=failure,
        is_active=not failure if is_active is None else is_active,
    )


def progressed(
    attempt: int, name: str, words: str = "wait call-back", *, at_rest: bool = False
) -> DeployProgressed:
    return DeployProgressed(
        cell="c1", instance=ONE, attempt=attempt, host=host(name), words=words, at_rest=at_rest
    )


# What a conductor knows of its hosts.


def set_(name: str, mode: HostMode, *, number: int = 1, must_clean: bool = False) -> CellHost:
    setting = HostSetting(mode=mode, reason="smoke", number=number)
    return CellHost(
        SetHostInCell(cell="c1", host=host(name), name=name, setting=setting, must_clean=must_clean)
    )


def states(*known: CellHost, silent: Sequence[str] = ()) -> HostStates:
    return HostStates(
        {each.word.host.int: each for each in known}, frozenset(host(name).int for name in silent)
    )


SILENT = states(silent=("h1",))
DOWN = states(set_("h1", "down"))
DEAD = states(set_("h1", "dead"))
LOST = HostsLost(ONE)


def drawing() -> DrawId:
    """Draws ids that are the same in each run."""
    numbers = count(10_000)
    return lambda: ConsumerId(UUID(int=next(numbers)))


# What a conductor hears: messages, placement's answer to its last question (None if it is lost), that seconds pass, or how its hosts are.
Step = Input | list[Input] | ClaimVerdict | None | int | HostStates
# Steps without words lead to the case. Its last words are what an audit is told.
Case = Sequence[Step | tuple[Step, str] | str]
# The fields of an order that are told if they are set.
NOTED = (
    *("number", "source", "source_attempt", "live", "stopped", "flavor", "name", "image", "image_properties"),
    *("config_drive", "ports", "save_as", "from_saved", "saved_until"),
)


class Cell:
    """The row of an instance, from one decision to the next. Its broker confirms at once, and its timers are on time."""

    def __init__(self, *inputs: Input) -> None:
        self.now = NOON
        self.hosts = ALL_UP
        self.rows: dict[InstanceId, Instance] = {}
        self.asked: Question | None = None
        self.draw = drawing()
        for each in inputs:
            self.hear(each)

    def hear(self, *inputs: Input) -> list[Message]:
        """The messages that the conductor publishes after this batch."""
        decision = decide(self.rows, inputs, self.now, RULES, self.hosts, draw=self.draw)
        self.rows |= {row.id: row for row in decision.rows}
        for each in decision.forgotten:
            self.rows.pop(each, None)
        said: list[Message] = [saying.message for saying in decision.said]
        for self.asked in decision.swaps:
            said.append(self.asked)
        return said

    def confirm_all(self) -> None:
        self.rows = {id_: structs.replace(row, outbox=()) for id_, row in self.rows.items()}

    @property
    def row(self) -> Instance:
        return self.rows[ONE]

    def play(self, step: Step) -> str:
        """The words for what the conductor says and asks."""
        heard: Sequence[Input] = ()
        if isinstance(step, HostStates):
            self.hosts = step
        elif isinstance(step, int):
            self.now += timedelta(seconds=step)
        elif step is None or isinstance(step, ClaimVerdict):
            assert self.asked is not None, "placement was asked nothing"
            heard = (SwapAnswered(ONE, self.asked, step),)
        else:
            heard = step if isinstance(step, list) else (step,)
        said = self._say_all(heard) if heard else []
        while (row := self.rows.get(ONE)) is not None and row.due_at is not None and row.due_at <= self.now:
            said += self._say_all([Due(ONE)])
        told = ", ".join(said).replace(str(ONE), "one")
        for each, name in HOSTS.items():
            told = told.replace(str(each), name)
        return told

    def _say_all(self, inputs: Sequence[Input]) -> list[str]:
        said = [self.words(each) for each in self.hear(*inputs)]
        self.confirm_all()
        return said

    def words(self, each: Message) -> str:
        match each:
            case ReleaseClaim():
                leaves = " from its group" if each.leaves_group else ""
                return f"release {self._holder(each.consumer)}/{each.attempt}{leaves}"
            case ClaimResources():
                return f"claim {_place(each.share)}/{each.attempt}"
            case SwapClaim():
                heir = f" for {self._holder(each.heir.id)} {each.heir.type}" if each.heir else ""
                back = f" back from {self._holder(each.returns)}" if each.returns else ""
                return f"swap {each.held_attempt} to {_place(each.share)}/{each.attempt}{heir}{back}"
            case AttemptMessage():
                kind = type(each).__name__.removesuffix("Instance").removesuffix("Guest").lower()
                share = (
                    _place(each.share).removeprefix(HOSTS[each.host]) if isinstance(each, BuildOrder) else ""
                )
                noted = [_noted(name, getattr(each, name, None)) for name in NOTED]
                return f"{kind} {HOSTS[each.host]}{share}/{each.attempt}" + "".join(noted)
            case _:
                spent = "spent: " if isinstance(each, AlternatesSpent) else ""
                return spent + _state(each.instance)  # type: ignore[attr-defined]

    def _holder(self, consumer: ConsumerId) -> str:
        return "one" if consumer == ONE else f"heir{consumer.int - 9_999}"

    def books(self) -> str:
        """What an audit is told of the instance."""
        if ONE not in self.rows:
            return "forgotten"
        entry = entry_of(self.row, RULES.cell)
        claims = [
            f"{self._holder(each.consumer)}/{each.attempt}"
            + (f" {_place(each.share)}" if each.share is not None else "")
            for each in entry.claims
        ]
        hosts = sorted({f"{HOSTS[each.host]}/{each.attempt}" for each in entry.on_hosts})
        return f"{entry.instance.state} | {', '.join(claims) or 'holds nothing'} | {', '.join(hosts) or 'on no host'}"


def _state(told: InstanceState) -> str:
    where = f" {told.host}/{told.attempt}" if told.host else ""
    flavor = f" {told.flavor.name}" if told.flavor else ""
    why = f": {told.reason}" if told.reason else ""
    kept = " (keeps its share)" if told.keeps_share else ""
    rebuilt = f"; rebuild {told.rebuild.number} {told.rebuild.failure}".rstrip() if told.rebuild else ""
    move = told.move
    moved = f"; {move.kind} {move.outcome} {move.failure}".rstrip() if move and move.outcome else ""
    tried = "".join(f"; {each.host}: {each.reason}" for each in told.failures)
    return told.state + where + flavor + why + kept + rebuilt + moved + tried


def _place(share: Share) -> str:
    name = HOSTS[share.host]
    (amount,) = share.amounts
    at = "" if amount.provider == share.host else "'s child"
    shapes = "".join(f"@{each.shape}" for each in share.shapes)
    return name + at + (f"*{amount.amount}" if amount.amount != 2 else "") + shapes


def _noted(name: str, value: object) -> str:
    if isinstance(value, Flavor):
        return f" {value.name}".rstrip()
    if isinstance(value, Image):
        return f" {value.source}"
    if isinstance(value, dict):
        return "".join(f" {key}={each}" for key, each in value.items())
    sign = {"number": " #", "source": " from ", "source_attempt": "/"}.get(name, f" {name} ")
    return f"{sign}{value}".removesuffix(" True") if value else ""


def check(case: Case) -> None:
    """Play the steps, and compare the words for what is said and asked."""
    cell = Cell()
    said, told = [], []
    for step in case:
        if isinstance(step, str):
            said.append(cell.books())
            told.append(step)
        elif isinstance(step, tuple):
            said.append(cell.play(step[0]))
            told.append(step[1])
        else:
            cell.play(step)
    assert said == told


ACTIVE: Case = [place(), spawned(1, "h1")]
ARRIVED: Case = [*ACTIVE, move(), CLAIMED, stopped(1, "h1"), spawned(2, "h2")]
