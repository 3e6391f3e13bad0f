"""The settings of a simulated Ironic."""

from msgspec import structs

from bus.topology import IRONIC
from compute_sim.laboratory.ironic.core.work import WorkDurations, WorkRules

__all__ = ["IronicSimSettings", "WorkDurations", "paced"]


def paced(delays: WorkDurations, pace: float) -> WorkDurations:
    """The delays multiplied by `pace`, except the power sync and the wait for an agent."""
    shortened = {
        field: getattr(delays, field) * pace
        for field in delays.__struct_fields__
        if field not in ("power_sync_s", "agent_timeout_s")
    }
    return structs.replace(delays, **shortened)


class IronicSimSettings(WorkRules, frozen=True, kw_only=True):
    # The conductor groups that are served; "" is the default group.
    conductor_groups: tuple[str, ...] = ("", "rack1", "rack2", "rack3")
    ports_count: int = 2
    # The exchange of its notifications: several Ironics on one broker have one each.
    exchange: str = IRONIC
    # The limit of notifications that wait for the bus; beyond it the oldest is lost.
    unsent_max: int = 100_000
    sends_at_once_max: int = 64
