"""Calls a function when the memory broker has stored a parcel, and its publisher does not know yet.

To cut the connection there loses the confirm.
"""

from collections.abc import Callable

from bus.broker import Receipt
from bus.memory import MemoryBroker
from bus.message import Parcel


def when_stored(memory: MemoryBroker, do: Callable[[Parcel], object]) -> None:
    store = memory.host.store

    def stored(parcel: Parcel, sender: str) -> Receipt:
        receipt = store(parcel, sender)
        do(parcel)
        return receipt

    memory.host.store = stored  # type: ignore[method-assign]
