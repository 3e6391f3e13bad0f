"""Planted bugs of balance: its plans, its steps, and whose a host is."""

from typing import Any

from engine import balancing
from engine.balancing import Loads
from keeper import balancing as keeping
from keeper import handlers
from keeper.balancing import Balancing
from keeper.core import balance
from keeper.granting import Granting
from tests.planted.replacing import planted_as, rewritten


def _changed(name: str, owner: Any, function: str, part: str, by: str, harm: str = "") -> None:
    planted_as(name, harm=harm)(lambda: rewritten(owner, function, part, by))


_changed(
    "a host gives guests in a plan, and takes others",
    balancing,
    "_ease",
    "takes[row], is_done[to] = False, True",
    "pass",
)
_changed(
    "a plan moves guests to other cells", Loads, "others", "takes & (self._cell == self._cell[row])", "takes"
)
_changed(
    "a plan fills hosts beyond their capacity",
    Loads,
    "fits",
    "(there <= self.capacity[rows])",
    "(there <= 2 * self.capacity[rows])",
)
_changed(
    "a host is half emptied by a plan to fill",
    balancing,
    "_empty_hosts",
    "if len(found) < len(guests):",
    "if not found:",
)
_changed(
    "guests come by a balance to hosts that are set down or drained",
    balance,
    "loaded",
    "takes=is_free and takes_guests(host)",
    "takes=is_free",
)
_changed(
    "a balance plans with hosts that another campaign has",
    Balancing,
    "plan",
    "states[each.name].up and states[each.name].id not in taken",
    "states[each.name].up",
)
_changed(
    "a guest that has moved is planned to move again",
    Balancing,
    "_movable",
    " and id_ not in moved",
    "",
)
_changed(
    "a guest that has moved meanwhile moves again",
    Granting,
    "_rested",
    "if each.instance in moved",
    "if False",
)
_changed("a step that gains nothing is made", balance, "judged", "if gain <= 0:", "if False:")
_changed(
    "the steps of a batch are judged as if each were alone",
    Balancing,
    "_gains",
    "with_step(loads,",
    "(lambda *_: None)(loads,",
)
_changed(
    "guests leave a host that a person has set draining by a plan",
    balance,
    "after_steps",
    "if told is not None and not takes_guests(told):",
    "if False:",
)
_changed(
    "a person's campaign is refused since a balance has its host",
    handlers,
    "begin_campaign",
    "is_balance or each.work.kind",
    "True or each.work.kind",
)
_changed(
    "a balance keeps the movements of a host that was taken from it",
    handlers,
    "begin_campaign",
    "await take_from(transaction, having[each.id], each, wanted, why=why, now=now)",
    "pass",
    "doubled",
)
_changed(
    "an affinity group is torn apart by a balance",
    balance,
    "movable",
    'or details.policy == "affinity"',
    "",
)
_changed(
    "a policy's balance is carried out whatever it gains",
    keeping.ContinuousBalance,
    "_carry_out",
    "if gain < (GAIN_MIN if least is None else least):",
    "if False:",
)
_changed(
    "a group with too many members on a host is not repaired",
    balance,
    "broken_members",
    "found |= dict.fromkeys(_surplus(named, group.max_per_host))",
    "pass",
)
