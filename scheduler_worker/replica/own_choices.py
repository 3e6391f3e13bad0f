"""What this worker has chosen and placement has not told of yet: it counts at once, and once."""

from collections.abc import Iterable, Sequence

from bus.message import ConsumerId
from bus.messages.placement import Share
from scheduler_worker.core.picture.picture import Picture

Key = tuple[ConsumerId, int]


class OwnChoices:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # And whether placement has said yes to them. By integers: a UUID hashes in Python.
        self._held: dict[tuple[int, int], tuple[Key, bool]] = {}

    def hold(self, choices: Sequence[tuple[ConsumerId, int, Share]]) -> None:
        for consumer, attempt, _ in choices:
            self._held[consumer.int, attempt] = (consumer, attempt), False
        self._picture.hold_all(choices)

    def granted(self, consumer: ConsumerId, attempt: int) -> None:
        """It counts until the feed names it, or a reading that began later contains it."""
        if (consumer.int, attempt) in self._held:
            self._held[consumer.int, attempt] = (consumer, attempt), True

    def drop(self, keys: Iterable[Key]) -> None:
        held = (self._held.pop((consumer.int, attempt), None) for consumer, attempt in keys)
        self._picture.drop_all([each[0] for each in held if each is not None])

    def granted_so_far(self) -> Sequence[Key]:
        return [key for key, granted in self._held.values() if granted]
