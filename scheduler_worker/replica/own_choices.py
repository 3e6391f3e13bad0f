"""The choices of this worker that the feed does not have yet: each counts at once, and only once."""

from collections.abc import Iterable, Sequence

from bus.message import ConsumerId
from bus.messages.placement import Share
from scheduler_worker.core.picture.picture import Picture

Key = tuple[ConsumerId, int]


class OwnChoices:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # With each choice, whether placement has granted it. Keys are integers: the hash of a UUID is computed in Python.
        self._held: dict[tuple[int, int], tuple[Key, bool]] = {}

    def hold(self, choices: Sequence[tuple[ConsumerId, int, Share]]) -> None:
        for consumer, attempt, _ in choices:
            self._held[consumer.int, attempt] = (consumer, attempt), False
        self._picture.hold(choices)

    def granted(self, consumer: ConsumerId, attempt: int) -> None:
        """The choice counts until the feed names it, or until a reading that began later has ended."""
        if (consumer.int, attempt) in self._held:
            self._held[consumer.int, attempt] = (consumer, attempt), True

    def drop(self, keys: Iterable[Key]) -> None:
        held = (self._held.pop((consumer.int, attempt), None) for consumer, attempt in keys)
        self._picture.drop([each[0] for each in held if each is not None])

    def granted_so_far(self) -> Sequence[Key]:
        return [key for key, granted in self._held.values() if granted]
