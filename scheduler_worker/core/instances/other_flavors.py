"""An instance that its cell builds with another flavor than the scheduler chose first, since no host could build that one."""

from typing import NamedTuple

from msgspec import structs

from bus.messages.build import BuildInstance, Flavor, FlavorPassedOver, InstanceState
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.instances.specs import alternatives_in, encoded, request_of
from scheduler_worker.core.requests.alternatives import Alternative

NOT_BUILT = "no host could build it"


class FlavorTaken(NamedTuple):
    """The row's `resized_spec`, and the flavors that were passed over for its flavor."""

    resized_spec: bytes
    passed_over: tuple[FlavorPassedOver, ...]


def after_other_flavor(row: InstanceRow, said: InstanceState) -> FlavorTaken:
    """As before, unless the cell has taken another flavor of those that the request accepts."""
    flavor = None if said.move is not None else said.flavor
    return with_flavor(row, flavor)


def with_flavor(row: InstanceRow, flavor: Flavor | None) -> FlavorTaken:
    """What the row has with this flavor of those that its request accepts. It is a better one than before if a question to
    placement was carried out late, and a worse one if no host could build what was before.
    """
    told = row.told
    if flavor is None or flavor == told.flavor:
        return FlavorTaken(row.resized_spec, told.passed_over)
    alternatives = alternatives_in(row.spec)
    for number, each in enumerate(alternatives):
        if each.flavor == flavor:
            passed = told.passed_over[:number]
            skipped = alternatives[len(passed) : number]
            build = structs.replace(request_of(row.spec) or BuildInstance(), flavor=each.flavor)
            return FlavorTaken(
                encoded(each.spec, build) if number else b"",
                (*passed, *[FlavorPassedOver(flavor=one.name, reason=NOT_BUILT) for one in skipped]),
            )
    return FlavorTaken(row.resized_spec, told.passed_over)


def still_accepted(row: InstanceRow, said: InstanceState) -> tuple[Alternative, ...]:
    """The flavor with which its cell goes on, and those that are worse; none if the request accepts one flavor only."""
    alternatives = alternatives_in(row.spec)
    numbers = [number for number, each in enumerate(alternatives) if each.flavor == said.flavor]
    return alternatives[numbers[0] if numbers else len(row.told.passed_over) :]
