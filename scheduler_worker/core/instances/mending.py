"""An audit's mend of an instance's row at API level: the row takes over what the instance's cell has."""

from msgspec import structs

from bus.messages.books import MendInstance
from bus.messages.build import SEQUENCE_FROM_CELL_MAX
from scheduler_worker.core.instances.lifecycle import resized_spec_after
from scheduler_worker.core.instances.other_flavors import after_other_flavor
from scheduler_worker.core.instances.rows import MOVED, NO_REQUEST, InstanceRow


def mended(row: InstanceRow | None, mend: MendInstance) -> InstanceRow | None:
    """The row with the state that the cell has.

    None if there is no row of a request, or if the row has changed since the audit read it. Also None if the cell's
    sequence is above the limit for cells, since it must leave room for the API level to count on.
    """
    if row is None or not _is_as_seen(row, mend) or mend.instance.sequence > SEQUENCE_FROM_CELL_MAX:
        return None
    told, of_cell = row.told, mend.instance
    return structs.replace(
        row,
        told=structs.replace(
            of_cell,
            request_id=told.request_id,
            sequence=max(told.sequence + 1, of_cell.sequence),
            name=told.name,
            project=told.project,
            failures=told.failures,
            refusals=told.refusals,
            flavor=of_cell.flavor or told.flavor,
            passed_over=after_other_flavor(row, of_cell)[1],
        ),
        order=None,
        choices=(),
        resized_spec=resized_spec_after(row, of_cell),
        next_spec=row.next_spec if of_cell.state == MOVED else b"",
        # Later events of that cell count again.
        heard=of_cell.sequence,
        unsaid=False,
        has_waited=told.waiting is not None,
    )


def _is_as_seen(row: InstanceRow, mend: MendInstance) -> bool:
    return row.told.request_id != NO_REQUEST and row.told.sequence == mend.seen
