"""What an operator may tune of a scheduler worker."""

from datetime import timedelta

from msgspec import Struct

from bus.tuning import Section


class SchedulerSettings(Struct, frozen=True):
    # How often one host is tried again whose shape moved between choice and claim, and how long at most between.
    shape_tries_max: int = 4
    shape_pause_ms_max: float = 50.0
    # How many claims in all are asked for one instance, whatever refused them.
    claims_max: int = 12
    # Hosts that the cell may go on to when the chosen one fails.
    alternates_max: int = 2
    # What filters let a host take: builds and the like under way (0: any number), and instances. A limit on builds under
    # way refuses for a reason that passes, so a burst larger than all hosts may have at once would be told no.
    io_ops_per_host_max: int = 0
    instances_per_host_max: int = 50
    # Batches of requests under way at once: while one waits for placement's verdicts, another is chosen.
    batches_in_flight: int = 2
    # A host that was not heard of for so long is down.
    host_down_s: float = 60.0
    # A host that is down and whose provider is gone from placement, both for so long, is forgotten.
    hosts_kept_s: float = 24 * 3600.0
    # How often other workers' word about hosts (enabled, disabled) is looked for.
    hosts_poll_s: float = 5.0
    # How long a request waits for the row of a host on which it holds a claim already. The worker that chose the host had
    # heard of it, and its row is written within seconds. If nobody writes it, the request ends, and lets go of the claim.
    host_row_wait_s: float = 30.0
    # How long a request may take until its end if it does not say so itself: by the kind of host that is chosen for it, since
    # deploying a bare-metal node takes half an hour. Until a host is chosen, the first counts. A rebuild has the second.
    request_timeout_s: int = 600
    node_request_timeout_s: int = 7200
    # How often requests past their deadline are looked for.
    deadline_poll_s: float = 5.0
    snapshot_page: int = 500
    # How often it is compared with placement, provider by provider: a change that was lost silently is found by then.
    verify_every_s: float = 60.0
    # A request that was sent longer ago than this is refused: what became of it may be forgotten. That is done after twice
    # that, so that clocks may differ by as much; an instance in error is kept until somebody deletes it.
    horizon_s: int = 24 * 3600
    prune_every_s: float = 300.0
    # In one transaction; it is done again at once while there is more.
    prune_rows_max: int = 500
    # A message on its row is said again only when it is this old: younger ones are still on their way.
    unsaid_s: float = 5.0
    # How many instances' orders may be under way to one cell's own broker; the others wait on their rows.
    under_way_max: int = 2000

    def __post_init__(self) -> None:
        if not 1 <= self.shape_tries_max <= self.claims_max:
            raise ValueError(
                f"shape_tries_max is {self.shape_tries_max}, must be from 1 to claims_max ({self.claims_max})"
            )
        if self.batches_in_flight < 1:
            raise ValueError(f"batches_in_flight is {self.batches_in_flight}, must be at least 1")
        if self.under_way_max < 1:
            raise ValueError(f"under_way_max is {self.under_way_max}, must be at least 1")
        if self.node_request_timeout_s < self.request_timeout_s:
            raise ValueError(
                f"node_request_timeout_s is {self.node_request_timeout_s}, must be at least request_timeout_s "
                f"({self.request_timeout_s}): nodes take longer"
            )
        for field in (
            "request_timeout_s",
            "deadline_poll_s",
            "snapshot_page",
            "hosts_kept_s",
            "host_row_wait_s",
            "verify_every_s",
            "horizon_s",
            "prune_every_s",
            "prune_rows_max",
        ):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} is {getattr(self, field)}, must be more than 0")
        if not 0 < self.hosts_poll_s <= self.host_down_s:
            raise ValueError(
                f"hosts_poll_s is {self.hosts_poll_s}, must be more than 0 and at most host_down_s ({self.host_down_s})"
            )

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


SECTION = Section("scheduler", SchedulerSettings)
