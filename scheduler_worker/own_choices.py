"""What this worker has chosen and placement has not told of yet: it counts at once, and once."""

from collections.abc import Sequence

from bus.message import ConsumerId
from bus.messages.placement import Share
from scheduler_worker.core.picture import Picture

Key = tuple[ConsumerId, int]


class OwnChoices:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # And whether placement has said yes to them.
        self._held: dict[Key, bool] = {}

    def hold(self, consumer: ConsumerId, attempt: int, share: Share) -> None:
        self._held[consumer, attempt] = False
        self._picture.hold(consumer, attempt, share)

    def granted(self, consumer: ConsumerId, attempt: int) -> None:
        """It counts until the feed names it, or a reading that began later contains it."""
        if (consumer, attempt) in self._held:
            self._held[consumer, attempt] = True

    def drop(self, consumer: ConsumerId, attempt: int) -> None:
        if self._held.pop((consumer, attempt), None) is not None:
            self._picture.drop(consumer, attempt)

    def granted_so_far(self) -> Sequence[Key]:
        return [key for key, granted in self._held.items() if granted]
