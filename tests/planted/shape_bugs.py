"""Planted bugs in reshapes of hosts."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from placement_worker import handlers
from tests.planted.replacing import replaced


def allocation_left_behind() -> AbstractContextManager[None]:
    """One consumer's row keeps the amounts of the old shape, although they are counted at the new providers."""

    def planted(real: Any) -> Any:
        def decide(*ledger: Any) -> Any:
            decision = real(*ledger)
            changes = decision.changes
            return structs.replace(
                decision,
                changes=structs.replace(changes, held=changes.held[1:], consumers=changes.consumers[1:]),
            )

        return decide

    return replaced(handlers, "decide_moves", planted)
