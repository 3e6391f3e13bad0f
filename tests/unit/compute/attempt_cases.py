"""Attempts on a host as values, and their cases as tables: each order, beside what it finds and what the host says when the work is over."""

from collections.abc import Sequence
from typing import Any

from bus.message import Message
from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    InstanceRedeployed,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import (
    WELL,
    AttemptRecord,
    Condition,
    HostOrder,
    Work,
    answered_again,
    answered_later,
    begun,
    looked_at,
    next_step,
    refusal_of,
    stopped_by_itself,
)
from engine.flavors import Flavor, Image
from engine.inventories import ConsumerId, ResourceAmount, Share
from laboratory.computes.driver import root_of

HOST = root_of("h1")
ABOUT: dict[str, Any] = {"cell": "c1", "instance": ConsumerId(HOST), "attempt": 1, "host": HOST}
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
BUILD: dict[str, Any] = ABOUT | {"flavor": Flavor(), "share": SHARE}
SPAWN = SpawnInstance(**BUILD)
RECEIVE = ReceiveInstance(**BUILD, source=root_of("h2"), source_attempt=4)
ADOPT = AdoptGuest(**BUILD)
DESTROY, LEAVE = DestroyInstance(**ABOUT), LeaveGuest(**ABOUT)
# The work is over.
DONE = Work()


def stop(number: int = 5, save_as: str = "") -> StopInstance:
    return StopInstance(**ABOUT, number=number, save_as=save_as)


def start(number: int = 5) -> StartInstance:
    return StartInstance(**ABOUT, number=number)


def respawn(number: int = 6) -> RespawnInstance:
    return RespawnInstance(**BUILD, number=number, image=Image(source="fedora"))


def fails(why: str, *, runs_on: bool = False) -> Work:
    return Work(failure=why, runs_on=runs_on)


# What a host gets: an order, how its driver ends the work, in which condition it does, or that the guest stops by itself, in words.
Step = HostOrder | Work | Condition | str
Case = Sequence[Step | tuple[Step, str]]


class Attempts:
    """One attempt on a host, from one order to the next."""

    def __init__(self) -> None:
        self.known: AttemptRecord | None = None

    def play(self, step: Step) -> str:
        if isinstance(step, Work | Condition):
            assert self.known is not None
            condition, work = (WELL, step) if isinstance(step, Work) else (step, DONE)
            self.known, answer = looked_at(self.known, condition, work, 50.0)
            until = f" until {self.known.ends_s:g}" if self.known.ends_s is not None else ""
            return f"{self.known.state.value}{until}: {said(answer)}"
        if isinstance(step, str):
            assert self.known is not None
            self.known = stopped_by_itself(self.known, step, 50.0)
            return "stops"
        how = next_step(self.known, step)
        if how == "begins":
            self.known = begun(step, Work(50), 10.0)
        elif how == "refused":
            assert isinstance(step, StopInstance | StartInstance | RespawnInstance), step
            return said(refusal_of(self.known, step))
        else:
            assert self.known is not None
            self.known = (
                answered_later(self.known, step) if how == "later" else answered_again(self.known, step, 11.0)
            )
        return how


def said(answer: Message | None) -> str:
    if answer is None:
        return "nothing"
    noted = ("number", "failure", "reason", "saved", "by_itself")
    values = [str(value) for name in noted if (value := getattr(answer, name, None))]
    fails_but_runs = isinstance(answer, InstanceRedeployed) and answer.failure and answer.is_active
    return " ".join([type(answer).__name__, *values, *(["and runs"] if fails_but_runs else [])])


def check(case: Case) -> None:
    attempts = Attempts()
    found, told = [], []
    for each in case:
        if isinstance(each, tuple):
            found.append(attempts.play(each[0]))
            told.append(each[1])
        else:
            attempts.play(each)
    assert found == told
