"""Resizes: the flavor that an order gives an instance, and the refusal of a size that the order does not say.

An order names what changes (`change`) and all else stays, or it replaces the whole flavor (`flavor`). In both cases an
instance that has memory or processors keeps some, unless the order says that it is to have none.
"""

from collections.abc import Iterator, Mapping

from msgspec import structs

from bus.messages.build import BuildRejected, Flavor, FlavorChange
from bus.messages.moves import MoveInstance
from scheduler_worker.core.instances.rebuilds import refused
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.core.requests.device_profiles import PROFILE, without_profile
from scheduler_worker.core.requests.groups_grammar import PREFERRED
from scheduler_worker.core.requests.page_sizes import is_memory

_DISK = ("root_gb", "ephemeral_gb", "swap_mb")
# The classes that each size of a flavor asks for.
_CLASSES = {
    "vcpus": ("VCPU", "PCPU"),
    "ram_mb": ("MEMORY_MB",),
    **dict.fromkeys(_DISK, ("DISK_GB",)),
}
# An instance keeps some of each of these, unless the order says otherwise.
_NEEDED = ("vcpus", "ram_mb")


def problem_with_resize(order: MoveInstance) -> BuildRejected | None:
    """What is wrong with the size in an order to move, as far as the order alone shows it."""
    flavor, change = order.flavor, order.change
    field, value, reason = "", "", ""
    if order.kind != "resize" and flavor is not None:
        field, value, reason = "flavor", flavor.name, f"only a resize has a flavor, not {order.kind}"
    elif order.kind != "resize" and change is not None:
        field, reason = "change", f"only a resize changes the flavor: {order.kind} keeps the whole size"
    elif order.kind == "resize" and flavor is None and change is None:
        field, reason = "flavor", "there is none: it says what size the instance gets"
    elif flavor is not None and change is not None:
        field = "change"
        reason = "flavor is given, too: change says what differs, flavor is the whole size; give one of both"
    elif change == FlavorChange():
        field, reason = "change", "it names nothing that changes"
    return refused(order, field, value, reason) if field else None


def flavor_after(order: MoveInstance, known: Flavor) -> Flavor | BuildRejected:
    """The whole flavor that the instance gets by this order. `known` is the flavor that it has."""
    change = order.change
    if change is None:
        assert order.flavor is not None, "an order with neither was refused"
        return order.flavor
    sizes = {field: amount for field in _CLASSES if (amount := getattr(change, field)) is not None}
    # Another device profile replaces the devices of the one before.
    replaces_devices = PROFILE in change.extra_specs
    before = known.extra_specs
    extra_specs = {**without_profile(before), **_named_profile(before)} if replaces_devices else dict(before)
    for key, value in change.extra_specs.items():
        if value is not None:
            extra_specs[key] = value
        elif extra_specs.pop(key, None) is None:
            has = ", ".join(sorted(before)) or "none"
            return refused(
                order, f"change.extra_specs.{key}", "null", f"there is none to remove: the flavor has {has}"
            )
    after = structs.replace(known, **sizes, extra_specs=extra_specs)
    for field, amount in sizes.items():
        for key, value in _extra_specs_of(after, field):
            if value != str(amount):
                reason = f"its extra spec {key}={value} counts in place of it: change that"
                return refused(order, f"change.{field}", amount, reason)
    return after


def _named_profile(extra_specs: Mapping[str, str]) -> dict[str, str]:
    return {PROFILE: extra_specs[PROFILE]} if PROFILE in extra_specs else {}


def problem_with_size(
    order: MoveInstance, flavor: Flavor, before: InstanceSpec, after: InstanceSpec
) -> BuildRejected | None:
    """Why the instance does not get the needs `after` in place of `before`; None if it does.

    It would lose all of its memory, or all of its processors, and the order does not say so. A flavor says so by an
    extra spec such as `resources:MEMORY_MB` = 0, as flavors of bare metal do; a change may also say `ram_mb` = 0.
    """
    had, gets = dict(before.amounts), dict(after.amounts)
    for field in _NEEDED:
        classes = _CLASSES[field]
        lost = [f"{had[each]} {each}" for each in classes if had.get(each)]
        kept = any(gets.get(each) for each in classes) or (field == "ram_mb" and any(map(is_memory, gets)))
        if not lost or kept or _says(order, flavor, field):
            continue
        none = f"resources:{classes[0]}"
        reason = (
            f"the instance has {' and '.join(lost)}, and would have none: name an amount; or, if none is meant, the "
            f"extra spec {none} = 0. To keep what a resize does not name, use change in place of flavor"
        )
        return refused(order, f"flavor.{field}", 0, reason)
    return None


def _says(order: MoveInstance, flavor: Flavor, field: str) -> bool:
    """Does the order say that the instance is to have none of this?"""
    change = order.change
    if change is None:
        return any(_extra_specs_of(flavor, field))
    return getattr(change, field) is not None or any(_extra_specs_of(change, field))


def _extra_specs_of(flavor: Flavor | FlavorChange, field: str) -> Iterator[tuple[str, str | None]]:
    """The extra specs that ask for an amount of a class of this size, in any granular group; of a change also those that
    it removes.
    """
    for key, value in flavor.extra_specs.items():
        kind, _, name = key.partition(":")
        is_amount = value is None or not value.startswith(PREFERRED)
        if kind.startswith("resources") and name in _CLASSES[field] and is_amount:
            yield key, value


def as_in_change(refusal: BuildRejected, change: FlavorChange | None) -> BuildRejected:
    """A rejection of the whole flavor, with the field of the change that it is about."""
    if change is None:
        return refusal
    field = refusal.field.removeprefix("flavor.")
    key = field.removeprefix("extra_specs.")
    if getattr(change, field, None) is not None or key in change.extra_specs:
        return structs.replace(refusal, field=f"change.{field}")
    return refusal
