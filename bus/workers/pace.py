"""How long a worker lets messages gather before it begins a batch: not at all while few come, and a moment while many do."""

from math import exp

# Parcels are counted with weights that fall with their age.
MEMORY_S = 0.2
# A wait pays if it brings at least so many parcels.
PARCELS_WORTH_IT = 4
# With so many messages, what a batch itself costs hardly matters any more.
MESSAGES_ENOUGH = 100
# A shorter wait is none: a clock may not tell it from zero.
SHORTEST_S = 0.000_1


class Pace:
    """Decides when the next batch begins.

    The cost of a batch hardly depends on the number of its messages. So while parcels keep coming, and each has few messages,
    batches begin at equal distances, and take all messages that came meanwhile. A message on an idle system does not wait. Nor do
    messages of a sender that has gathered them itself: its parcels are rare.
    """

    def __init__(self) -> None:
        self._parcels = 0.0
        self._counted_s = 0.0
        self._begun_s = 0.0

    def arrived(self, now_s: float) -> None:
        """Note that a parcel has arrived."""
        self._parcels = self._parcels_now(now_s) + 1
        self._counted_s = now_s

    def wait_s(self, now_s: float, messages: int, gather_s: float) -> float:
        """How long the next batch has to wait, with so many messages there; 0 if it may begin now."""
        wait_s = self._begun_s + gather_s - now_s
        if messages >= MESSAGES_ENOUGH or wait_s < SHORTEST_S:
            return 0.0
        return wait_s if self._parcels_now(now_s) / MEMORY_S * gather_s >= PARCELS_WORTH_IT else 0.0

    def begun(self, now_s: float) -> None:
        self._begun_s = now_s

    def _parcels_now(self, now_s: float) -> float:
        return self._parcels * exp((self._counted_s - now_s) / MEMORY_S)
