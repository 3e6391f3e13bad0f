"""The settings of a scheduler worker."""

from datetime import timedelta
from typing import Literal

from bus.configuration.settings import require_positive
from bus.configuration.tuning import Section
from bus.messages.cell import ALTERNATES_MAX
from bus.messages.placement import SNAPSHOT_PAGE_MAX
from scheduler_worker.core.choosing.plugin_settings import SIGNED, PluginSettings
from scheduler_worker.third_party import filters_of, weighers_of

# Each batch in flight has a loop of its own.
BATCHES_MAX = 100


class SchedulerSettings(PluginSettings, frozen=True, kw_only=True):
    # core/choosing/plugin_settings.py has the settings that choose and tune filters and weighers.
    # How many times one host is tried whose shape moved between choice and claim, and the longest pause between tries.
    shape_tries_max: int = 4
    shape_pause_ms_max: float = 50.0
    # How many claims one instance may make in all, whatever refused them.
    claims_max: int = 12
    # How many alternates an instance gets, for its cell to use when the chosen host fails.
    alternates_max: int = 2
    # Batches of requests under way at once: while one waits for placement's verdicts, hosts are chosen for another.
    batches_in_flight: int = 2
    # A cell without a heartbeat of a conductor that can work for so long is down. Then new instances go elsewhere, or to the
    # cell nevertheless: their orders wait for it.
    cell_down_s: float = 20.0
    when_cell_down: Literal["elsewhere", "wait"] = "elsewhere"
    # How long a cell has to answer a question about what it has itself.
    live_answer_s: float = 5.0
    # A host is set draining after so many failed builds in a row, and again by each further one; 0: never.
    failed_builds_max: int = 10
    # A host that is down and has no provider in placement, both for so long, is forgotten.
    hosts_kept_s: float = 24 * 3600.0
    # How often rows of hosts and applications are read that other workers may have written.
    hosts_poll_s: float = 5.0
    # How long a request waits for the row of a host on which it holds a claim already. The worker that chose the host had
    # heard of it, and its row is written within seconds. If it is not, the request ends, and its claim is released.
    host_row_wait_s: float = 30.0
    # The deadline of a request that names none: it depends on the kind of the chosen host, since deploying a bare-metal
    # node takes half an hour. Until a host is chosen, the first counts. The second is also that of a rebuild.
    request_timeout_s: int = 600
    node_request_timeout_s: int = 7200
    # The deadline of a move that names none, and after how long a move that arrived confirms itself.
    move_timeout_s: int = 3600
    move_confirm_s: int = 24 * 3600
    # How long an evacuation waits for room that does not say it; 0: not at all. It ends if its host is up again before.
    evacuation_wait_s: int = 24 * 3600
    # How many moves may go on at once from or to one host, and in one cell; a further one is refused. 0: any number.
    # Evacuations, and what stays on its host, count in the cell alone. Schedulers that take orders at the same moment may exceed both.
    moves_per_host_max: int = 0
    moves_per_cell_max: int = 0
    # How long the one worker that tries waiting instances may take for some of them; then another one takes over.
    wake_lease_s: float = 10.0
    # How often requests past their deadline are looked for.
    deadline_poll_s: float = 5.0
    snapshot_page: int = 500
    # How often the picture is compared with placement, provider by provider, to find changes that were lost silently.
    verify_every_s: float = 60.0
    # A request that was sent longer ago than this is refused, since its rows may be forgotten. They are forgotten after
    # twice that, so that clocks may differ by as much. An instance in error is kept until a client deletes it.
    horizon_s: int = 24 * 3600
    prune_every_s: float = 300.0
    # How many requests are forgotten in one transaction; it is repeated at once while there are more.
    prune_rows_max: int = 500
    # A sweep repeats a row's messages only when they are this old: younger ones are still on their way.
    unsaid_s: float = 5.0
    # How many instances' orders may be under way to one cell's own broker; others wait on their rows.
    under_way_max: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        # They are loaded, so that a name that nothing has is told before anything starts.
        filters_of(self)
        weighers_of(self)
        if not 1 <= self.shape_tries_max <= self.claims_max:
            raise ValueError(
                f"shape_tries_max is {self.shape_tries_max}, must be from 1 to claims_max ({self.claims_max})"
            )
        for name, most in (("snapshot_page", SNAPSHOT_PAGE_MAX), ("batches_in_flight", BATCHES_MAX)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, must be from 1 to {most}")
        if not 0 <= self.alternates_max <= ALTERNATES_MAX:
            raise ValueError(f"alternates_max is {self.alternates_max}, must be from 0 to {ALTERNATES_MAX}")
        if self.node_request_timeout_s < self.request_timeout_s:
            raise ValueError(
                f"node_request_timeout_s is {self.node_request_timeout_s}, must be at least request_timeout_s "
                f"({self.request_timeout_s}): nodes take longer"
            )
        require_positive(
            self,
            (
                "request_timeout_s",
                "move_timeout_s",
                "deadline_poll_s",
                "wake_lease_s",
                "hosts_kept_s",
                "hosts_poll_s",
                "host_row_wait_s",
                "verify_every_s",
                "horizon_s",
                "prune_every_s",
                "prune_rows_max",
                "under_way_max",
                "cell_down_s",
                "live_answer_s",
            ),
        )

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


SECTION = Section("scheduler", SchedulerSettings, signed=SIGNED)
