"""What may be set of a simulated Ironic."""

from collections.abc import Mapping

from msgspec import Struct, structs

from compute_sim.ironic.core.work import Delays

__all__ = ["Delays", "IronicSimSettings", "paced"]


def paced(delays: Delays, pace: float) -> Delays:
    """Everything takes so many times as long. The power sync and the wait for an agent stay as they are."""
    shortened = {
        field: getattr(delays, field) * pace
        for field in delays.__struct_fields__
        if field not in ("power_sync_s", "agent_timeout_s")
    }
    return structs.replace(delays, **shortened)


class IronicSimSettings(Struct, frozen=True, kw_only=True):
    delays: Delays = Delays()
    # Whether a node is cleaned before it is available; a node's automated_clean overrules it.
    cleans: bool = True
    # The host that API and conductor say they run on.
    host: str = "ironic-sim-1"
    # The conductor groups that conductors serve; "" is the default group.
    conductor_groups: tuple[str, ...] = ("", "rack1", "rack2", "rack3")
    ports_count: int = 2
    # With users, the API asks for HTTP basic authentication: name to password. Without, it asks for nothing.
    users: Mapping[str, str] = {}
    page_max: int = 1000
    # How long each answer of the API is held back after it was made: what it says may then be outdated.
    answer_after_s: float = 0.0
    # Notifications that wait for the bus; the oldest is lost when there are more.
    unsent_max: int = 100_000
    sends_at_once_max: int = 64
