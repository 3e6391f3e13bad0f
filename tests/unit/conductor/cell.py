"""A cell as a value: its rows from one decision to the next, and the messages to and from it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID, uuid5

from msgspec import structs

from bus.message import Message
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    PlaceInCell,
    RemoveFromCell,
    SpawnFailed,
)
from bus.messages.placement import ReleaseClaim, SwapClaim
from cell_conductor.core.decide import Decision, Due, Input, decide
from cell_conductor.core.rows import (
    ALL_UP,
    ConductorRules,
    DrawId,
    HostStates,
    Instance,
    Question,
    SwapAnswered,
)
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import (
    Choice,
    ConsumerId,
    ProviderId,
    ResourceAmount,
    Share,
)
from engine.refusals import (
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    Shortfall,
)

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
FULL = DoesNotFit(shortfalls=(Shortfall(provider=ProviderId(UUID(int=9)), resource="VCPU", asked=2, free=1),))


def host(name: str) -> ProviderId:
    return ProviderId(uuid5(ONE, name))


def choice(name: str) -> Choice:
    amounts = (ResourceAmount(provider=host(name), resource="VCPU", amount=2),)
    return Choice(name=name, share=Share(host=host(name), amounts=amounts))


def place(*alternates: str, ends_in_s: float = 600) -> PlaceInCell:
    return PlaceInCell(
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


REMOVE = RemoveFromCell(
    cell="c1", instance=ONE, request_id=RequestId(UUID(int=100)), sequence=3, issued_at=NOON
)


def spawned(attempt: int, name: str) -> InstanceSpawned:
    return InstanceSpawned(cell="c1", instance=ONE, attempt=attempt, host=host(name))


def failed(attempt: int, name: str) -> SpawnFailed:
    return SpawnFailed(cell="c1", instance=ONE, attempt=attempt, host=host(name), reason="no image")


def destroyed(attempt: int, name: str) -> InstanceDestroyed:
    return InstanceDestroyed(cell="c1", instance=ONE, attempt=attempt, host=host(name))


def destroy(attempt: int, name: str, saved_until: int = 0) -> DestroyInstance:
    return DestroyInstance(cell="c1", instance=ONE, attempt=attempt, host=host(name), saved_until=saved_until)


def drawing() -> DrawId:
    """Draws ids that are the same in each run."""
    numbers = count(10_000)
    return lambda: ConsumerId(UUID(int=next(numbers)))


class Cell:
    """The rows of a cell, from one decision to the next."""

    def __init__(self, *inputs: Input) -> None:
        self.now = NOON
        self.rows: dict[InstanceId, Instance] = {}
        self.last = Decision((), (), (), ())
        self.draw = drawing()
        self.heirs: dict[int, ConsumerId] = {}
        for each in inputs:
            self.hear(each)

    def hear(self, *inputs: Input, hosts: HostStates = ALL_UP) -> list[Message]:
        """The messages that the conductor publishes after this batch."""
        self.last = decide(self.rows, inputs, self.now, RULES, hosts, draw=self.draw)
        self.rows |= {row.id: row for row in self.last.rows}
        for each in self.last.forgotten:
            del self.rows[each]
        for row in self.rows.values():
            self._note_heirs(row)
        return [saying.message for saying in self.last.said]

    def _note_heirs(self, row: Instance) -> None:
        if row.heir is not None:
            self.heirs[row.attempt] = row.heir
        if row.moving is not None and row.moving.heir is not None:
            self.heirs[row.moving.heir_attempt] = row.moving.heir

    def heir(self, attempt: int) -> ConsumerId:
        """The heir that the row has named for this attempt."""
        return self.heirs[attempt]

    def after_s(self, seconds: float) -> list[Message]:
        self.now += timedelta(seconds=seconds)
        return self.hear(Due(ONE))

    def hear_due(self, hosts: HostStates = ALL_UP) -> list[Message]:
        return self.hear(Due(ONE), hosts=hosts)

    def answer(self, swap: Question, verdict: ClaimVerdict, hosts: HostStates = ALL_UP) -> list[Message]:
        """Placement's answer to a swap."""
        return self.hear(SwapAnswered(ONE, swap, verdict), hosts=hosts)

    def swap(self, verdict: ClaimVerdict | None) -> list[Message]:
        """Placement's answer to the current swap."""
        if not self.last.swaps:
            self.hear(Due(ONE))
        (swap,) = self.last.swaps
        return self.hear(SwapAnswered(ONE, swap, verdict))

    @property
    def swap_asked(self) -> SwapClaim:
        (swap,) = self.last.swaps
        assert isinstance(swap, SwapClaim)
        return swap

    def confirm_all(self) -> None:
        self.rows = {id_: structs.replace(row, outbox=()) for id_, row in self.rows.items()}

    @property
    def row(self) -> Instance:
        return self.rows[ONE]


def kinds(said: Sequence[Message]) -> list[type[Message]]:
    return [type(each) for each in said]


def released(said: Sequence[Message]) -> list[tuple[ConsumerId, int]]:
    return [(each.consumer, each.attempt) for each in said if isinstance(each, ReleaseClaim)]
