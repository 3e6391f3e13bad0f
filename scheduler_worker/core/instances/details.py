"""The details of an instance that its row at API level has beside its state: its size, and when its hosts were chosen.

This is read from the row when somebody asks: nothing of it is written for it.
"""

from bus.messages.build import InstanceDetails, Size
from scheduler_worker.core.instances.rows import MOVED, MOVING, REBUILDING, InstanceRow
from scheduler_worker.core.instances.specs import alternatives_in, decoded, flavor_of, image_name_of
from scheduler_worker.core.requests import InstanceSpec


def details_of(row: InstanceRow) -> InstanceDetails:
    return InstanceDetails(
        id=row.id,
        size=size_in(_spec_that_counts(row)),
        accepted_at=row.issued_at,
        placed_at=None if row.decision is None else row.decision.at,
        move_placed_at=None if row.move_decision is None else row.move_decision.at,
        image=_image_name(row),
    )


def _image_name(row: InstanceRow) -> str:
    """The name of the stored image that the instance has; empty if it has another one, or none is known."""
    rebuild = row.told.rebuild
    if rebuild is None:
        return image_name_of(row.spec)
    return "" if rebuild.failure or row.told.state == REBUILDING else rebuild.image_name


def size_in(kept: bytes) -> Size | None:
    """The size that these bytes of a row ask for; None if there are none, or if they cannot be read."""
    spec, known = decoded(kept), flavor_of(kept)
    return None if spec is None or known is None else _size(known.name, spec)


def booted_size(row: InstanceRow) -> Size | None:
    """The size that the instance was built with. Of several flavors it is the one that it got."""
    alternatives = alternatives_in(row.spec)
    if not alternatives:
        return size_in(row.spec)
    passed = len(row.told.passed_over)
    if passed >= len(alternatives):
        # It got none of them.
        return None
    chosen = alternatives[passed]
    return _size(chosen.flavor.name, chosen.spec)


def _size(flavor: str, spec: InstanceSpec) -> Size:
    return Size(flavor=flavor, amounts={resource: amount for resource, amount in spec.amounts if amount})


def _spec_that_counts(row: InstanceRow) -> bytes:
    """After a resize has arrived, the instance holds its new size, and while it is being confirmed, too."""
    told = row.told
    is_confirmed = told.state == MOVING and told.move is not None and told.move.asked == "confirm"
    return (row.next_spec if told.state == MOVED or is_confirmed else b"") or row.current_spec
