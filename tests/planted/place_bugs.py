"""Planted bugs in places of hosts, and in the rules of server groups that stand on them."""

from typing import Any
from unittest.mock import patch

from msgspec import structs

from engine.choosing.hosts import Hosts
from moor.client.hosts import HostCalls
from placement_worker.core import forest, reports, swaps
from placement_worker.core.limits import GroupsDraft
from tests.planted.replacing import planted


# Claims of one batch are judged by the members that were there before it.
@planted(
    "members of one batch do not count by a rule for domains", GroupsDraft, "judge_rules", harm="overbooked"
)
def batch_not_counted(real: Any, self: Any, group: Any, host: Any, leaving: Any, leaves: Any = ()) -> Any:
    return real(self, group, host, (*leaving, *[each.consumer for each in self.joined]), leaves)


# A scheduler's claim that was chosen by the old place is granted.
@planted("a host that is placed anew keeps its shape", (forest, reports), "is_same_to_claims")
def shape_of_old_place(real: Any, one: Any, other: Any) -> Any:
    old = {"reported_place": other.reported_place, "operator_place": other.operator_place}
    return real(structs.replace(one, **old), other)


@planted("a report takes back where an operator has placed a host", reports, "_rewritten")
def operators_place_lost(real: Any, book: Any, reported: Any) -> Any:
    after = real(book, reported)
    return after if reported.place is None else structs.replace(after, operator_place="")


# Each line of a file is an order of its own.
@planted("of hosts to place those before a wrong one are placed", HostCalls, "place_hosts")
async def placed_one_by_one(real: Any, self: Any, places: Any, **fields: Any) -> Any:
    return [placed for each in places for placed in await real(self, [each], **fields)]


@planted("a swap is not judged by the rules of its group", swaps, "judge_place", harm="overbooked")
def swap_without_rules(real: Any, draft: Any, *asked: Any, **known: Any) -> Any:
    with patch.object(draft.groups, "judge_rules", lambda *_: None):
        return real(draft, *asked, **known)


# In a rack with as many members as it may have, none of them can move to another host.
@planted("a member that moves counts against itself", Hosts, "members_inside")
def mover_counted(real: Any, self: Any, group: Any, level: Any, _mover: Any) -> Any:
    return real(self, group, level, None)
