"""The settings of a conductor."""

from msgspec import Struct

from bus.configuration.settings import require_positive
from bus.configuration.tuning import Section


class ConductorSettings(Struct, frozen=True):
    # How long a host may build without a message before the next one is tried.
    attempt_timeout_s: float = 300.0
    # How long a delete waits for the host; a share that the host may still have stays held for longer.
    destroy_timeout_s: float = 300.0
    # These are the first two for bare-metal nodes, whose deploys take half an hour. A progress message starts the first
    # again. Rebuilds use the first, too.
    deploy_timeout_s: float = 2_700.0
    undeploy_timeout_s: float = 1_800.0
    # How often a host is reminded of what it must clean up.
    remind_every_s: float = 300.0
    # A swap without an answer is asked again after this, then after twice that, and so on.
    retry_delay_s_first: float = 0.5
    retry_delay_s_max: float = 30.0
    # How long a question to placement belongs to the process that asked it; then another may ask it again.
    ask_lease_s: float = 60.0
    # How long the rows of ended instances stay, to recognise late messages.
    kept_after_end_s: float = 48 * 3600
    # Every `poll_ms` the timers check whether a row that this process saved is due. Every `look_s` they read the due
    # rows of all processes. Rows that fall due within `rest_ms` after a read are handled together, at most
    # `due_rows_max` at once.
    poll_ms: float = 500.0
    rest_ms: float = 250.0
    look_s: float = 5.0
    due_rows_max: int = 200
    # How often a conductor tells the API level that it lives and reaches its database.
    beat_s: float = 5.0

    def __post_init__(self) -> None:
        require_positive(
            self,
            (
                "attempt_timeout_s",
                "destroy_timeout_s",
                "deploy_timeout_s",
                "undeploy_timeout_s",
                "remind_every_s",
                "ask_lease_s",
                "kept_after_end_s",
                "poll_ms",
                "look_s",
                "due_rows_max",
                "beat_s",
            ),
        )
        if self.retry_delay_s_first > self.retry_delay_s_max:
            raise ValueError(
                f"retry_delay_s_first is {self.retry_delay_s_first}, must be at most retry_delay_s_max "
                f"({self.retry_delay_s_max})"
            )


SECTION = Section(
    "conductor",
    ConductorSettings,
    aliases={"MOOR_ATTEMPT_TIMEOUT_S": ("attempt_timeout_s", "remind_every_s")},
)
