"""The server groups of a mix: the members of each are kept on different hosts."""

from collections import Counter
from collections.abc import Sequence

from bus.message import GroupId
from bus.messages.groups import CreateGroup, GroupsFound
from bus.workers.station import Station
from moor.asking import batches_of, granted
from moor.instances.request_ids import new_request_ids
from moor.laboratory.load.mix import Mix
from moor.laboratory.load.orders import PROJECT

CREATED_AT_ONCE = 200


async def groups_for(client: Station, mix: Mix, names: Sequence[str]) -> list[GroupId]:
    """Create the groups of these orders. Returns the group of each order of the kind `group`, in their order."""
    groups: list[GroupId] = []
    made: Counter[str] = Counter()
    open_groups: dict[str, GroupId] = {}
    for name in names:
        if (entry := mix.get(name)) is None or entry.kind != "group":
            continue
        if made[name] % entry.count == 0:
            open_groups[name] = GroupId(*new_request_ids(1))
        made[name] += 1
        groups.append(open_groups[name])
    for some in batches_of(list(dict.fromkeys(groups)), CREATED_AT_ONCE):
        orders = [CreateGroup(id=each, policy="anti-affinity", project=PROJECT) for each in some]
        for order, answer in zip(orders, await client.ask_all(orders), strict=True):
            granted(order, answer, GroupsFound)
    return groups
