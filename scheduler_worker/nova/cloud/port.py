"""How the present value of a Nova is asked for."""

from typing import Protocol

from scheduler_worker.nova.cloud.values import NovaCloud


class KnowsNovaCloud(Protocol):
    """Keeps a Nova in memory, by notifications and by reading all of it at intervals."""

    @property
    def cloud(self) -> NovaCloud | None:
        """As it is known now; None before it was read for the first time. Another value after each change, so `is` tells of changes."""
