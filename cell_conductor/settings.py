"""The settings of a conductor."""

from typing import Annotated

from msgspec import Meta, Struct

from kit.settings import Seconds, Section


class ConductorSettings(Struct, frozen=True):
    attempt_timeout_s: Annotated[
        Seconds,
        Meta(
            description="How long a host may build without a message before the next host is tried, and how often it is reminded of "
            "what it must clean up. Longer is kinder to slow hosts; shorter finds a dead host sooner."
        ),
    ] = 300.0
    destroy_timeout_s: Annotated[
        Seconds,
        Meta(
            description="How long a delete waits for the host. After this the instance counts as deleted, but the share that the "
            "host may still have stays held until the host answers."
        ),
    ] = 300.0
    deploy_timeout_s: Annotated[
        Seconds,
        Meta(
            description="As attempt_timeout_s, for bare-metal nodes; each progress message starts it again. Too short gives up "
            "deploys that would succeed; too long notices a lost one late."
        ),
    ] = 2_700.0
    undeploy_timeout_s: Annotated[
        Seconds,
        Meta(
            description="As destroy_timeout_s, for bare-metal nodes. Cleaning a node takes long: a short time only makes deletes "
            "look faster."
        ),
    ] = 1_800.0
    kept_after_end_s: Annotated[
        Seconds,
        Meta(
            description="How long rows of ended instances are kept, to recognise late messages. Longer needs more space; shorter "
            "risks that a late message is not recognised."
        ),
    ] = 48 * 3600


class ConductorPace(Struct, frozen=True):
    """How often a conductor looks and asks, where no operator has a reason to change it. Tests do."""

    # How often timers look whether a row that this process saved is due.
    poll_s: float = 0.5
    # Rows that fall due within this time after a check are handled together: many cost little more than one.
    rest_s: float = 0.28
    # How often the due rows of all conductors are read, so that one takes over the work of a dead one.
    look_s: float = 5.0
    # Well below the schedulers' cell_down_s: without heartbeats, a cell counts as down.
    beat_s: float = 5.0
    # The pauses before placement is asked again; each is twice as long as the one before.
    retry_delay_s_first: float = 0.5
    retry_delay_s_max: float = 30.0
    # How often a host is reminded of what it must clean up. 0: as often as an attempt may take.
    remind_every_s: float = 0.0


PACE = ConductorPace()
CONDUCTOR = Section("conductor", ConductorSettings, "conductors")
