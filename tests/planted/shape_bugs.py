"""Planted bugs in reshapes of hosts."""

from typing import Any

from msgspec import structs

from placement_worker import handlers
from tests.planted.replacing import planted


# One consumer's row keeps the amounts of the old shape, although they are counted at the new providers.
@planted("an allocation left behind by a reshape", handlers, "decide_moves", world="shapes")
def allocation_left_behind(real: Any, *ledger: Any) -> Any:
    decision = real(*ledger)
    changes = decision.changes
    return structs.replace(
        decision,
        changes=structs.replace(changes, held=changes.held[1:], consumers=changes.consumers[1:]),
    )
