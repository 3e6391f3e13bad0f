"""What an instance has here otherwise than in Nova: each difference in words, with both values."""

from collections.abc import Iterable, Iterator, Mapping

from bus.auditing.views import InstanceView
from bus.messages.adoption import AdoptInstance
from bus.messages.books import BookEntry
from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.placement import NO_OWNER, ResourceAmount

PAGES = "CUSTOM_MEMORY_MB_PAGES_"
TOLD = {"active": "active", "stopped": "stopped", "shelved": "shelved", "broken": "error"}


def differences_of(
    order: AdoptInstance, needed: Mapping[str, int], view: InstanceView | None, *, is_asked: bool
) -> list[str]:
    """`order` and `needed` are what Nova has now. `is_asked`: the host could be asked what it has."""
    who = f"instance {order.instance}"
    state = None if view is None else view.at_api
    if view is None or state is None:
        return [f"{who}: Nova has it on {order.of_cell}/{order.host}, and it is not here"]
    found = [
        f"{who}: {what} is {there} in Nova, and {here} here"
        for what, there, here in _pairs(order, state, view.details)
        if there != here
    ]
    if view.consumer is None:
        found.append(f"{who}: it holds nothing in placement here")
    else:
        found += _of_holder(who, order, needed, view.consumer)
    if not is_asked:
        found.append(f"{who}: its host does not say what it has")
    elif not any(each.entry.host == order.share.host for each in view.on_hosts) and order.state != "broken":
        found.append(f"{who}: its host does not have it")
    return found


def _pairs(
    order: AdoptInstance, state: InstanceState, details: InstanceDetails | None
) -> Iterator[tuple[str, object, object]]:
    yield "the state", TOLD[order.state], state.state
    yield "the host", f"{order.of_cell}/{order.host}", f"{state.cell}/{state.host}"
    yield "the name", order.name, state.name
    yield "the project", order.project, state.project
    if details is not None and details.size is not None:
        yield "the flavor", order.flavor.name, details.size.flavor
    if details is not None and details.accepted_at is not None:
        yield "the creation", order.created_at, details.accepted_at


def _of_holder(who: str, order: AdoptInstance, needed: Mapping[str, int], holder: BookEntry) -> Iterator[str]:
    held = _by_class(holder.held)
    for resource, there in sorted(needed.items()):
        if there != (here := held.get(resource, 0)):
            yield f"{who}: it holds {there} {resource} in Nova, and {here} here"
    for what, owner, here_ in (
        ("the project of its claim", order.project or NO_OWNER, holder.project),
        ("the user of its claim", order.user or NO_OWNER, holder.user),
    ):
        if owner != here_:
            yield f"{who}: {what} is {owner} in Nova, and {here_} here"


def _by_class(amounts: Iterable[ResourceAmount]) -> Mapping[str, int]:
    """Memory in large pages has a class of its own here, and none in Nova."""
    found: dict[str, int] = {}
    for each in amounts:
        resource = "MEMORY_MB" if each.resource.startswith(PAGES) else each.resource
        found[resource] = found.get(resource, 0) + each.amount
    return found
