"""The settings of a conductor."""

from typing import Annotated

from msgspec import Meta, Struct

from kit.settings import Count, Milliseconds, MillisecondsOr0, Seconds, SecondsOr0, Section, require


class ConductorSettings(Struct, frozen=True):
    attempt_timeout_s: Annotated[
        Seconds,
        Meta(
            description="How long a host may build without a message before the next host is tried. Longer is kinder to slow "
            "hosts; shorter finds a dead host sooner."
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
    remind_every_s: Annotated[
        Seconds,
        Meta(
            description="How often a host is reminded of what it must clean up. Shorter frees capacity sooner after a lost "
            "message, for more messages."
        ),
    ] = 300.0
    retry_delay_s_first: Annotated[
        SecondsOr0,
        Meta(
            description="The pause before a swap without an answer is asked again; each further pause is twice as long. Shorter "
            "recovers faster and loads a slow placement more."
        ),
    ] = 0.5
    retry_delay_s_max: Annotated[
        SecondsOr0,
        Meta(
            description="The longest pause between two tries of a swap. Longer spares a placement that is down; shorter goes on "
            "sooner when it is back."
        ),
    ] = 30.0
    ask_lease_s: Annotated[
        Seconds,
        Meta(
            description="How long a question to placement belongs to the process that asked it. Shorter lets another conductor "
            "take over sooner after a crash; too short asks twice."
        ),
    ] = 60.0
    kept_after_end_s: Annotated[
        Seconds,
        Meta(
            description="How long rows of ended instances are kept, to recognise late messages. Longer needs more space; shorter "
            "risks that a late message is not recognised."
        ),
    ] = 48 * 3600
    poll_ms: Annotated[
        Milliseconds,
        Meta(
            description="How often timers check whether a row that this process saved is due. Shorter acts nearer to the exact "
            "time, for more CPU."
        ),
    ] = 500.0
    rest_ms: Annotated[
        MillisecondsOr0,
        Meta(
            description="Rows that fall due within this time after a read are handled together; within up to four times as long while "
            "the cell is busy. Longer makes larger, cheaper batches; shorter acts sooner."
        ),
    ] = 250.0
    look_s: Annotated[
        Seconds,
        Meta(
            description="How often the due rows of all conductors are read from the database. Shorter takes over the work of a "
            "dead conductor sooner, for more queries."
        ),
    ] = 5.0
    due_rows_max: Annotated[
        Count,
        Meta(
            description="How many due rows are handled at once. More is faster after an outage; fewer keeps transactions short."
        ),
    ] = 200
    beat_s: Annotated[
        Seconds,
        Meta(
            description="How often a conductor tells the API level that it lives and reaches its database. It must be well below "
            "the schedulers' cell_down_s, or the cell counts as down."
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        require(
            self.retry_delay_s_first <= self.retry_delay_s_max,
            f"retry_delay_s_first is {self.retry_delay_s_first}, must be at most retry_delay_s_max ({self.retry_delay_s_max})",
        )


CONDUCTOR = Section(
    "conductor",
    ConductorSettings,
    "conductors",
    aliases={"MOOR_ATTEMPT_TIMEOUT_S": ("attempt_timeout_s", "remind_every_s")},
)
