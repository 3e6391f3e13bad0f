"""An instance that its cell built with another flavor than the scheduler chose, since no host could build the first one."""

from msgspec import structs

from bus.messages.build import BuildInstance, FlavorPassedOver, InstanceState
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.instances.specs import alternatives_in, encoded, request_of

NOT_BUILT = "no host could build it"


def after_other_flavor(row: InstanceRow, said: InstanceState) -> tuple[bytes, tuple[FlavorPassedOver, ...]]:
    """The row's `resized_spec`, and the flavors that were passed over, after the cell has told the flavor of the instance.
    Both are as before, unless the cell took a worse flavor of those that the request accepts.
    """
    told = row.told
    if said.flavor is None or said.flavor == told.flavor or said.move is not None:
        return row.resized_spec, told.passed_over
    alternatives = alternatives_in(row.spec)
    passed = len(told.passed_over)
    for number, each in enumerate(alternatives[passed + 1 :], passed + 1):
        if each.flavor == said.flavor:
            skipped = [
                FlavorPassedOver(flavor=one.name, reason=NOT_BUILT) for one in alternatives[passed:number]
            ]
            build = structs.replace(request_of(row.spec) or BuildInstance(), flavor=each.flavor)
            return encoded(each.spec, build), (*told.passed_over, *skipped)
    return row.resized_spec, told.passed_over
