"""An audit's mend of an instance's row at API level: the row takes over what the instance's cell has."""

from msgspec import structs

from bus.messages.books import MendInstance
from bus.messages.build import SEQUENCE_FROM_CELL_MAX
from scheduler_worker.core.instances.lifecycle import with_state_of_cell
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow


def mended(row: InstanceRow | None, mend: MendInstance) -> InstanceRow | None:
    """The row with the state that the cell has.

    None if there is no row of a request, or if the row has changed since the audit read it. Also None if the cell's
    sequence is above the limit for cells, since it must leave room for the API level to count on.
    """
    if row is None or not _is_as_seen(row, mend) or mend.instance.sequence > SEQUENCE_FROM_CELL_MAX:
        return None
    # Later events of that cell count again.
    after = with_state_of_cell(row, structs.replace(mend.instance, failures=row.told.failures))
    return structs.replace(after, unsaid=False, has_waited=row.told.waiting is not None)


def _is_as_seen(row: InstanceRow, mend: MendInstance) -> bool:
    return row.told.request_id != NO_REQUEST and row.told.sequence == mend.seen
