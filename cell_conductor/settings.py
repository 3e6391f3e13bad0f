"""What an operator may tune of a conductor."""

from msgspec import Struct

from bus.tuning import Section


class ConductorSettings(Struct, frozen=True):
    # How long a host may build without a word before the next one is tried.
    attempt_timeout_s: float = 300.0
    # How long a delete waits for the host; what the host may still have stays held for as long as it takes.
    destroy_timeout_s: float = 300.0
    # The same two for bare-metal nodes, whose deploys take half an hour. A word of the deploy's progress begins the first
    # anew. A rebuild has the first, too.
    deploy_timeout_s: float = 2_700.0
    undeploy_timeout_s: float = 1_800.0
    # How often a host is told again what it has to clean up.
    remind_every_s: float = 300.0
    # A swap that nobody answered is asked again after this, then twice that, and so on.
    retry_delay_s_first: float = 0.5
    retry_delay_s_max: float = 30.0
    # How long a question to placement belongs to who asked it; then another process may ask it again.
    ask_lease_s: float = 60.0
    # Ended instances are known for so long, so that a message that comes late finds them.
    kept_after_end_s: float = 48 * 3600
    # Rows that this process has saved are looked at when they are due, by a clock that is read so often; those that others
    # have left are found so often. How long what falls due after a look waits for company, and how many are taken at once.
    poll_ms: float = 500.0
    rest_ms: float = 250.0
    look_s: float = 5.0
    due_rows_max: int = 200

    def __post_init__(self) -> None:
        for field in (
            "attempt_timeout_s",
            "destroy_timeout_s",
            "deploy_timeout_s",
            "undeploy_timeout_s",
            "remind_every_s",
            "ask_lease_s",
            "kept_after_end_s",
            "poll_ms",
            "look_s",
        ):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} is {getattr(self, field)}, must be more than 0")
        if self.retry_delay_s_first > self.retry_delay_s_max:
            raise ValueError(
                f"retry_delay_s_first is {self.retry_delay_s_first}, must be at most retry_delay_s_max "
                f"({self.retry_delay_s_max})"
            )
        if self.due_rows_max < 1:
            raise ValueError(f"due_rows_max is {self.due_rows_max}, must be at least 1")


SECTION = Section(
    "conductor",
    ConductorSettings,
    aliases={"MOOR_ATTEMPT_TIMEOUT_S": ("attempt_timeout_s", "remind_every_s")},
)
