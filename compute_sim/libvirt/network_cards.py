"""The addresses of guests' network cards."""

from bus.messages.build import InstanceId


def mac_of(instance: InstanceId, number: int = 0) -> str:
    """The address of a card, derived from the instance, so that it stays the same when it moves. The prefix is that of Nova."""
    last = (instance.int + number) & 0xFFFFFF
    return f"fa:16:3e:{last >> 16:02x}:{last >> 8 & 0xFF:02x}:{last & 0xFF:02x}"
