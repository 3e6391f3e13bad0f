"""Orders about one instance, the sequences of them that every driver and every compute must obey, and the answers of a host on which all
work succeeds.

They are written once: tests/contracts/driver_contract.py gives them to a driver in its own process, and rules.py sends them to
a compute over the bus. compute_sim/core/attempts.py decides what the answer to each must be. Pure.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import uuid5

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    ReceiveInstance,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import (
    WELL,
    AttemptKey,
    AttemptRecord,
    HostOrder,
    Work,
    answered_again,
    begun,
    failed,
    key_of,
    looked_at,
    next_step,
    refusal_of,
    source_key_of,
    why_not_received,
)
from engine.flavors import Flavor, Image, InstanceId
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share

T = TypeVar("T")


class HostUnderCheck(Struct, frozen=True):
    """The host that gets the orders, and the flavor, share and images in them."""

    cell: str
    host: ProviderId
    flavor: Flavor = Flavor(vcpus=1)
    share: Share | None = None
    image: Image | None = None
    other_image: Image = Image(source="another")

    @property
    def share_of_it(self) -> Share:
        if self.share is not None:
            return self.share
        return Share(host=self.host, amounts=(ResourceAmount(provider=self.host, resource="VCPU", amount=1),))


class InstanceOrders:
    """Makes the orders about one instance on this host. Its attempts have the numbers 1 and 2."""

    def __init__(self, on: HostUnderCheck, instance: InstanceId | ConsumerId) -> None:
        self.on = on
        self.instance = InstanceId(instance)

    def _order(self, kind: Callable[..., T], attempt: int, **fields: object) -> T:
        on = self.on
        return kind(cell=on.cell, host=on.host, instance=self.instance, attempt=attempt, **fields)

    def _build(self, kind: Callable[..., T], attempt: int, **fields: object) -> T:
        return self._order(kind, attempt, flavor=self.on.flavor, share=self.on.share_of_it, **fields)

    def spawn(self, attempt: int = 1, *, stopped: bool = False) -> SpawnInstance:
        name = f"check-{str(self.instance)[-8:]}"
        return self._build(SpawnInstance, attempt, image=self.on.image, name=name, stopped=stopped)

    def receive(
        self, source: ProviderId | None = None, *, live: bool = False, stopped: bool = False
    ) -> ReceiveInstance:
        """The second attempt takes over the first one, which is on `source`: by default on the same host."""
        source = source or self.on.host
        return self._build(ReceiveInstance, 2, source=source, source_attempt=1, live=live, stopped=stopped)

    def stop(self, number: int, attempt: int = 1, save_as: str = "") -> StopInstance:
        return self._order(StopInstance, attempt, number=number, save_as=save_as)

    def start(self, number: int, attempt: int = 1) -> StartInstance:
        return self._order(StartInstance, attempt, number=number)

    def respawn(self, number: int, attempt: int = 1) -> RespawnInstance:
        return self._build(RespawnInstance, attempt, number=number, image=self.on.other_image)

    def destroy(self, attempt: int = 1) -> DestroyInstance:
        return self._order(DestroyInstance, attempt)


# Orders of which each is sent when the one before is carried out, and begins work of its own.
OrderSequence = tuple[HostOrder, ...]


class Interruption(Struct, frozen=True):
    """After `before` is carried out, `work` is ordered, and `last` while the host may still be at it."""

    before: tuple[HostOrder, ...]
    work: HostOrder
    last: HostOrder
    # The answer depends on whether the work has ended when the last order comes.
    depends_on_time: bool = False


def stop_and_start(of: InstanceOrders) -> OrderSequence:
    return (of.spawn(), of.stop(1), of.start(1), of.stop(2), of.start(2))


def rebuild(of: InstanceOrders) -> OrderSequence:
    return (of.spawn(), of.respawn(1), of.stop(2), of.respawn(3))


def resize_in_place(of: InstanceOrders) -> tuple[HostOrder, HostOrder, HostOrder, HostOrder]:
    return (of.spawn(), of.stop(1), of.receive(), of.destroy(1))


def without_running(of: InstanceOrders) -> OrderSequence:
    return (of.spawn(stopped=True), of.receive(stopped=True), of.start(3, attempt=2))


def destroy_twice(of: InstanceOrders) -> OrderSequence:
    return (of.spawn(), of.destroy(), of.destroy())


def after_a_reshape(of: InstanceOrders) -> OrderSequence:
    """Where the host got another shape, later orders still name the providers that the instance was claimed on."""
    share = of.on.share_of_it
    gone = [
        structs.replace(each, provider=ProviderId(uuid5(each.provider, "gone"))) for each in share.amounts
    ]
    old = structs.replace(of.on, share=structs.replace(share, amounts=tuple(gone)))
    late = InstanceOrders(old, of.instance)
    return (of.spawn(), late.respawn(1), late.stop(2), late.start(2), late.destroy())


SEQUENCES: Mapping[str, Callable[[InstanceOrders], OrderSequence]] = {
    "twice": stop_and_start,
    "in place": rebuild,
    "from itself": resize_in_place,
    "without running it": without_running,
    "and again": destroy_twice,
    "with an old share": after_a_reshape,
}


def interruptions(of: Callable[[str], InstanceOrders]) -> tuple[Interruption, ...]:
    """Each is about an instance of its own; `of` makes the orders of the instance with this name."""
    a, b, c, d, e, f, g, h, i = map(of, "abcdefghi")
    return (
        Interruption((), a.spawn(), a.destroy()),
        Interruption((b.spawn(),), b.stop(1), b.start(1)),
        Interruption((c.spawn(),), c.stop(1), c.destroy()),
        Interruption((d.spawn(), d.stop(1)), d.start(1), d.stop(2)),
        Interruption((e.spawn(), e.stop(1)), e.start(1), e.destroy()),
        Interruption((f.spawn(), f.stop(1)), f.receive(), f.destroy(2)),
        Interruption((g.spawn(),), g.respawn(1), g.respawn(2)),
        Interruption((h.spawn(),), h.respawn(1), h.destroy()),
        Interruption(
            (i.spawn(), i.stop(1)), i.receive(stopped=True), i.start(3, attempt=2), depends_on_time=True
        ),
    )


Answer = InstanceSpawned | SpawnFailed | InstanceDestroyed | InstanceStopped | InstanceRedeployed
ANSWERS = (InstanceSpawned, SpawnFailed, InstanceDestroyed, InstanceStopped, InstanceRedeployed)


class ExpectedAttempts:
    """The attempts that a correct compute has after the orders so far."""

    def __init__(self) -> None:
        self._records: dict[AttemptKey, AttemptRecord] = {}

    def answer_to(self, order: HostOrder) -> Answer:
        known = self._records.get(key_of(order))
        if next_step(known, order) == "refused":
            assert isinstance(order, StopInstance | StartInstance | RespawnInstance)
            return _answer(refusal_of(known, order))
        after, message = looked_at(self._after(known, order), WELL, Work(), 0.0)
        self._records[after.key] = after
        return _answer(message)

    def _after(self, known: AttemptRecord | None, order: HostOrder) -> AttemptRecord:
        if known is not None and next_step(known, order) != "begins":
            return answered_again(known, order, 0.0)
        if isinstance(order, ReceiveInstance) and (
            why := why_not_received(self._records.get(source_key_of(order)), order)
        ):
            return failed(order, why, 0.0)
        return begun(order, Work(), 0.0)

    def all(self) -> list[AttemptRecord]:
        """Every attempt that was ordered, also those that are destroyed."""
        return [*self._records.values()]


def agrees(came: Answer, expected: Answer) -> bool:
    """Is this the expected answer? Reasons are for people: they must be there or not, whatever they say."""
    return _compared(came) == _compared(expected)


def _compared(answer: Answer) -> tuple[object, ...]:
    about = (type(answer), answer.host, answer.instance, answer.attempt)
    match answer:
        case InstanceSpawned(number=number):
            return (*about, number)
        case SpawnFailed(number=number):
            return (*about, number)
        case InstanceStopped(number=number, failure=failure, saved=saved):
            return (*about, number, bool(failure), saved)
        case InstanceRedeployed(number=number, failure=failure, is_active=is_active):
            return (*about, number, bool(failure), is_active)
        case InstanceDestroyed():
            return about


def _answer(message: Message | None) -> Answer:
    assert isinstance(message, ANSWERS)
    return message
