"""The worker loop, planted."""

from contextlib import AbstractContextManager
from typing import Any

from bus.worker import Worker
from tests.simulation.replacing import replaced


def acknowledge_before_commit() -> AbstractContextManager[None]:
    """The batch is acknowledged when it is begun: who dies over it has lost it."""

    def by(real: Any) -> Any:
        async def handle(self: Any, handler: Any, items: Any) -> None:
            await self.intake.done(items)
            await real(self, handler, items)

        return handle

    return replaced(Worker, "_handle", by)
