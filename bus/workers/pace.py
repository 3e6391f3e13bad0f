"""How long a worker lets messages gather before it begins a batch: not at all while few come, and a moment while many do."""

from math import exp

from bus.pauses import grown

# Parcels are counted with weights that fall with their age.
MEMORY_S = 0.2
# A wait pays if it brings at least so many parcels.
PARCELS_WORTH_IT = 4
# With so many messages, what a batch itself costs hardly matters any more.
MESSAGES_ENOUGH = 100
# A shorter wait is none: a clock may not tell it from zero.
SHORTEST_S = 0.000_1
# A wait was in vain if it brought less than this part of the parcels that were to be expected, by how many came before.
VAIN_BELOW = 1 / 3
# After so many in a row there is none for a while, which grows with each further one.
VAIN_WAITS = 3
REST_S_FIRST, REST_S_MAX = 0.2, 5.0


class Pace:
    """Decides when the next batch begins.

    The cost of a batch hardly depends on the number of its messages. So while parcels keep coming, and each has few messages,
    batches begin at equal distances, and take all messages that came meanwhile. A message on an idle system does not wait. Nor do
    messages of a sender that has gathered them itself: its parcels are rare. A client that sends one message after the answer to the
    last sends nothing while it waits: such waits are in vain, and are soon left out.
    """

    def __init__(self) -> None:
        self._parcels = 0.0
        self._counted_s = 0.0
        self._begun_s = 0.0
        # Since when the next batch waits, and how many parcels were counted then.
        self._waits: tuple[float, float] | None = None
        # How many waits in a row were in vain, and until when there is none.
        self._vain = 0
        self._rests_until_s = 0.0

    def arrived(self, now_s: float) -> None:
        """Note that a parcel has arrived."""
        self._parcels = self._parcels_now(now_s) + 1
        self._counted_s = now_s

    def wait_s(self, now_s: float, messages: int, gather_s: float) -> float:
        """How long the next batch has to wait, with so many messages there; 0 if it may begin now."""
        wait_s = self._begun_s + gather_s - now_s
        if messages >= MESSAGES_ENOUGH or wait_s < SHORTEST_S:
            return 0.0
        parcels = self._parcels_now(now_s)
        if parcels / MEMORY_S * gather_s < PARCELS_WORTH_IT or now_s < self._rests_until_s:
            return 0.0
        if self._waits is None:
            self._waits = (now_s, parcels)
        return wait_s

    def begun(self, now_s: float) -> None:
        if self._waits is not None:
            self._judge_wait(now_s, *self._waits)
            self._waits = None
        self._begun_s = now_s

    def _judge_wait(self, now_s: float, since_s: float, parcels: float) -> None:
        left = exp((since_s - now_s) / MEMORY_S)
        brought = self._parcels_now(now_s) - parcels * left
        least = parcels * (1 - left) * VAIN_BELOW
        if least < 1:
            # That nothing came may be chance.
            return
        self._vain = self._vain + 1 if brought < least else 0
        if self._vain >= VAIN_WAITS:
            self._rests_until_s = now_s + grown(REST_S_FIRST, REST_S_MAX, self._vain - VAIN_WAITS + 1)

    def _parcels_now(self, now_s: float) -> float:
        return self._parcels * exp((self._counted_s - now_s) / MEMORY_S)
