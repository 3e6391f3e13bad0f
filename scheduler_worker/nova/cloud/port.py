"""How the present value of a Nova is asked for."""

from typing import Protocol

from scheduler_worker.nova.cloud.values import NovaCloud


class ReadsNovaCloud(Protocol):
    """Reads all of a Nova anew: from its REST API, and its API database."""

    async def cloud(self) -> NovaCloud:
        """Raises `Operational` if Nova does not answer, refuses, or answers what cannot be read."""


class KnowsNovaCloud(Protocol):
    """Keeps a Nova in memory, by notifications and by reading all of it at intervals."""

    @property
    def cloud(self) -> NovaCloud | None:
        """As it is known now; None before it was read for the first time. Another value after each change, so `is` tells of changes."""
