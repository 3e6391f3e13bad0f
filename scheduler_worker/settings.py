"""The settings of a scheduler worker."""

from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta

from bus.messages.placement import SNAPSHOT_PAGE_MAX
from engine.choosing.plugin_settings import MULTIPLIERS, PluginSettings
from engine.inventories import ALTERNATES_MAX
from kit.settings import Count, CountOr0, MillisecondsOr0, Seconds, SecondsOr0, Section, require
from scheduler_worker.third_party import filters_of, weighers_of


class SchedulerSettings(PluginSettings, frozen=True, kw_only=True):
    shape_tries_max: Annotated[
        Count,
        Meta(
            description="How many times one host is tried whose inventory changed between choice and claim; at most claims_max. More insists on "
            "the best host; fewer goes to the next one sooner."
        ),
    ] = 4
    shape_pause_ms_max: Annotated[
        MillisecondsOr0,
        Meta(
            description="The longest pause between such tries. Longer waits for the picture to catch up; shorter answers sooner."
        ),
    ] = 50.0
    claims_max: Annotated[
        Count,
        Meta(
            description="How many claims one instance may make in all, whatever refused them. More finds the last free hosts of a full cloud; "
            "fewer refuses sooner."
        ),
    ] = 12
    alternates_max: Annotated[
        Annotated[int, Meta(ge=0, le=ALTERNATES_MAX)],
        Meta(
            description="How many alternates an instance gets, for its cell to use when the chosen host fails. More survives more failures "
            "without asking again, for larger messages."
        ),
    ] = 2
    batches_in_flight: Annotated[
        Annotated[int, Meta(ge=1, le=100)],
        Meta(
            description="How many batches of requests are under way at once: while one waits for placement, hosts are chosen for another. More "
            "uses waiting time; fewer makes fewer conflicts."
        ),
    ] = 2
    count_every_s: Annotated[
        Seconds,
        Meta(
            description="How often instances, hosts and capacity are counted for /metrics, by one of the schedulers whose metrics are read. "
            "Shorter is fresher; each count reads the state of all instances, and 99 % of the time is pause."
        ),
    ] = 30.0
    cell_down_s: Annotated[
        Seconds,
        Meta(
            description="After how long without a heartbeat of a conductor a cell counts as down. Shorter avoids dead cells sooner; it must be "
            "well above the conductors' beat_s."
        ),
    ] = 20.0
    when_cell_down: Annotated[
        Literal["elsewhere", "wait"],
        Meta(
            description="What happens to new instances while a cell is down: elsewhere sends them to other cells; wait also chooses this cell, "
            "and their orders wait for it."
        ),
    ] = "elsewhere"
    failed_builds_max: Annotated[
        CountOr0,
        Meta(
            description="After how many failed builds in a row a host is set draining, and again by each further one; 0: never. Fewer protects "
            "instances sooner; more tolerates faults that pass."
        ),
    ] = 10
    hosts_kept_s: Annotated[
        Seconds,
        Meta(
            description="How long a host is remembered that is down and has no provider in placement. Longer keeps its mode for a return; "
            "shorter forgets removed hosts sooner."
        ),
    ] = 24 * 3600.0
    hosts_poll_s: Annotated[
        Seconds,
        Meta(
            description="How often rows of hosts and applications are read that other workers may have written. Shorter sees changes sooner, "
            "for more queries."
        ),
    ] = 5.0
    host_row_wait_s: Annotated[
        Seconds,
        Meta(
            description="How long a request waits for the row of a host on which it already has a claim. Another worker writes that row within "
            "seconds; after this time the request ends and its claim is released."
        ),
    ] = 30.0
    request_timeout_s: Annotated[
        Count,
        Meta(
            description="The deadline of a request that names none, for virtual hosts. Longer survives longer outages; shorter tells the user "
            "sooner."
        ),
    ] = 600
    node_request_timeout_s: Annotated[
        Count,
        Meta(
            description="The deadline of a request that names none, once a bare-metal node is chosen, and of a rebuild. At least "
            "request_timeout_s, since a deploy takes half an hour."
        ),
    ] = 7200
    move_timeout_s: Annotated[
        Count,
        Meta(
            description="The deadline of a move that names none. Longer lets slow moves finish; shorter gives up sooner, and the instance stays "
            "where it is."
        ),
    ] = 3600
    move_confirm_s: Annotated[
        CountOr0,
        Meta(
            description="After how long a move that arrived confirms itself; 0: at once. Longer leaves more time to go back; shorter frees the "
            "source sooner."
        ),
    ] = 24 * 3600
    evacuation_wait_s: Annotated[
        CountOr0,
        Meta(
            description="How long an evacuation waits for room unless it says so itself; 0: not at all. It ends if its host is up again. Longer "
            "saves more instances of a full cloud."
        ),
    ] = 24 * 3600
    moves_per_host_max: Annotated[
        CountOr0,
        Meta(
            description="How many moves may go on at once from or to one host; a further one is refused; 0: any number. Fewer protects network "
            "and disks; more empties hosts faster."
        ),
    ] = 0
    moves_per_cell_max: Annotated[
        CountOr0,
        Meta(
            description="How many moves may go on at once in one cell, evacuations included; a further one is refused; 0: any number. Fewer "
            "protects the cell's network; more empties hosts faster."
        ),
    ] = 0
    wake_lease_s: Annotated[
        Seconds,
        Meta(
            description="How long the one worker that tries waiting instances may take for some of them; then another one takes over. Shorter "
            "recovers sooner from a dead worker; too short does work twice."
        ),
    ] = 10.0
    deadline_poll_s: Annotated[
        Seconds,
        Meta(
            description="How often requests past their deadline are looked for. Shorter ends them nearer to their deadline, for more queries."
        ),
    ] = 5.0
    snapshot_page: Annotated[
        Annotated[int, Meta(ge=1, le=SNAPSHOT_PAGE_MAX)],
        Meta(
            description="How many providers a scheduler reads from placement at once when it starts. More starts faster; fewer makes smaller "
            "messages."
        ),
    ] = 500
    verify_every_s: Annotated[
        Seconds,
        Meta(
            description="How often the picture is compared with placement, provider by provider, to find changes that were lost silently. "
            "Shorter corrects the picture sooner, for more questions."
        ),
    ] = 60.0
    horizon_s: Annotated[
        Count,
        Meta(
            description="A request that was sent longer ago than this is refused. Rows of ended requests are kept for twice this time. Longer "
            "accepts older messages, for more rows."
        ),
    ] = 24 * 3600
    prune_every_s: Annotated[
        Seconds,
        Meta(
            description="How often rows of old requests are deleted. Shorter makes many small deletes; longer makes fewer large ones."
        ),
    ] = 300.0
    prune_rows_max: Annotated[
        Count,
        Meta(
            description="How many requests are deleted in one transaction; this is repeated while there are more. More is faster; fewer keeps "
            "transactions short."
        ),
    ] = 500
    unsaid_s: Annotated[
        SecondsOr0,
        Meta(
            description="How old a row's messages are before a sweep repeats them: younger ones are still on their way. Shorter recovers "
            "sooner; too short sends messages twice."
        ),
    ] = 5.0
    under_way_max: Annotated[
        Count,
        Meta(
            description="How many instances' orders may be under way to one cell's own broker; others wait on their rows. More uses a distant "
            "broker better; fewer needs less memory while it is away."
        ),
    ] = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        # They are loaded, so that a name that nothing has is told before anything starts.
        filters_of(self)
        weighers_of(self)
        require(
            self.shape_tries_max <= self.claims_max,
            f"shape_tries_max is {self.shape_tries_max}, must be at most claims_max ({self.claims_max})",
        )
        require(
            self.node_request_timeout_s >= self.request_timeout_s,
            f"node_request_timeout_s is {self.node_request_timeout_s}, must be at least request_timeout_s "
            f"({self.request_timeout_s}): nodes take longer",
        )

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


SCHEDULER = Section(
    "scheduler",
    SchedulerSettings,
    "schedulers",
    reloaded=frozenset(
        (
            # The plugins are made of these again (wiring/__init__.py).
            *MULTIPLIERS,
            "metrics_weights",
            "metrics_weight_of_unavailable",
            "host_subset_size",
            "io_ops_per_host_max",
            "instances_per_host_max",
        )
    ),
)
