"""The words on the bus, one file a subject; `ALL` is every kind of message there is."""

from bus.message import Message
from bus.messages import placement

ALL: tuple[type[Message], ...] = (
    placement.ClaimResources,
    placement.SwapClaim,
    placement.ReleaseClaim,
    placement.ClaimAnswered,
    placement.ReportInventory,
    placement.ReportAnswered,
    placement.InventoryRefused,
    placement.AskSnapshot,
    placement.SnapshotPage,
    placement.ProvidersChanged,
)
