"""The settings of a scheduler worker, its pace, and the plugins of other packages that the settings name."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from importlib.metadata import entry_points
from math import isfinite
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from engine.choosing.compounds import WayJudge
from engine.choosing.plugin_settings import (
    MULTIPLIERS,
    OPTIONAL_FILTERS,
    STANDARD_WAY_JUDGES,
    STANDARD_WEIGHERS,
    PluginSettings,
    chosen_plugins,
)
from engine.choosing.plugins import MULTIPLIERS_MAX, Filter, Plugins, Weigher
from engine.inventories import ALTERNATES_MAX
from kit.settings import Count, CountOr0, Seconds, Section, require

# Plugins of other packages, by entry points (docs/scheduling.md shows one): filters and judges of ways are made without arguments,
# weighers with a multiplier. Only those that the settings name are imported.

FILTERS_GROUP = "moorage.filters"
WEIGHERS_GROUP = "moorage.weighers"
WAY_JUDGES_GROUP = "moorage.way_judges"
_OF_FILTERS = ("name", "is_per_instance", "reads", "woken_by", "scopes", "image_keys", "passes", "reason")
_OF_WEIGHERS = ("name", "multiplier", "minimum", "reads", "woken_by", "under", "weigh")
_OF_WAY_JUDGES = ("may_strike", "reads", "judge")


def plugins_of(settings: PluginSettings) -> Plugins:
    """The plugins that the settings choose, with those of other packages. May raise ValueError."""
    return chosen_plugins(settings, filters_of(settings), weighers_of(settings), way_judges_of(settings))


def filters_of(settings: PluginSettings) -> Mapping[str, Filter]:
    """The filters of other packages that the settings name. May raise ValueError."""
    loaded: dict[str, Filter] = {}
    for name in settings.filters:
        if name not in OPTIONAL_FILTERS:
            made = _factory("filters", name, FILTERS_GROUP, OPTIONAL_FILTERS)()
            loaded[name] = _checked("filters", name, made, _OF_FILTERS)
    return loaded


def weighers_of(settings: PluginSettings) -> Mapping[str, Weigher]:
    """The weighers of other packages that the settings name, as NAME or NAME=MULTIPLIER. May raise ValueError."""
    loaded: dict[str, Weigher] = {}
    for text in settings.weighers:
        if text not in STANDARD_WEIGHERS:
            name, multiplier = _multiplied(text)
            made = _factory("weighers", name, WEIGHERS_GROUP, STANDARD_WEIGHERS)(multiplier)
            loaded[text] = _checked("weighers", name, made, _OF_WEIGHERS)
    return loaded


def way_judges_of(settings: PluginSettings) -> Mapping[str, WayJudge]:
    """The judges of ways of other packages that the settings name. May raise ValueError."""
    loaded: dict[str, WayJudge] = {}
    for name in settings.way_judges:
        if name not in STANDARD_WAY_JUDGES:
            made = _factory("way_judges", name, WAY_JUDGES_GROUP, STANDARD_WAY_JUDGES)()
            loaded[name] = _checked("way_judges", name, made, _OF_WAY_JUDGES)
    return loaded


def _multiplied(text: str) -> tuple[str, float]:
    name, _, number = (part.strip() for part in text.partition("="))
    if name in STANDARD_WEIGHERS:
        raise ValueError(f"weighers has {text!r}: {name} has a setting of its own, {name}_weight_multiplier")
    try:
        multiplier = float(number or 1)
    except ValueError:
        multiplier = float("nan")
    if not isfinite(multiplier) or abs(multiplier) > MULTIPLIERS_MAX:
        raise ValueError(f"weighers has {text!r}, must be NAME or NAME=NUMBER, at most {MULTIPLIERS_MAX:g}")
    return name, multiplier


def _factory(field: str, name: str, group: str, own: Iterable[str]) -> Callable[..., Any]:
    installed = {each.name: each for each in entry_points(group=group)}
    if name not in installed:
        known = ", ".join((*own, *sorted(installed)))
        raise ValueError(
            f"{field} names {name!r}, must be among {known}; other packages bring more by {group!r}"
        )
    try:
        loaded: Callable[..., Any] = installed[name].load()
    except (ImportError, AttributeError) as problem:
        raise ValueError(f"{field} names {name!r}, which cannot be imported: {problem}") from problem
    return loaded


def _checked(field: str, name: str, made: Any, parts: Iterable[str]) -> Any:
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        raise ValueError(
            f"{field} names {name!r}, which has no {', '.join(missing)}: it is none of the {field}"
        )
    return made


class SchedulerPace(Struct, frozen=True, kw_only=True):
    """How often and how long a scheduler tries. No operator changes this: it follows from what the other workers promise. Tests
    and the simulation shorten it.
    """

    # How often one host is tried whose inventory changed between choice and claim: more insists on the best host. Between two
    # tries the picture catches up.
    shape_tries_max: int = 4
    shape_pause_ms_max: float = 50.0
    # Of one instance, whatever refused them: enough to find the last free hosts of a full cloud.
    claims_max: int = 12
    # While one batch waits for placement, hosts are chosen for another. More of them make more conflicts.
    batches_in_flight: int = 2
    # How often rows are read that other workers may have written: of hosts, aggregates, applications.
    hosts_poll_s: float = 5.0
    # Another worker writes the row of a new host within seconds. A request that holds a claim there waits so long for it.
    host_row_wait_s: float = 30.0
    # The one worker that tries waiting instances may take so long for some of them; then another one takes over.
    wake_lease_s: float = 10.0
    deadline_poll_s: float = 5.0
    # How many providers one answer of placement has when a scheduler starts.
    snapshot_page: int = 500
    # How often the picture is compared with placement, to find changes that were lost silently.
    verify_every_s: float = 60.0
    prune_every_s: float = 300.0
    # Younger messages of a row are still on their way: a sweep does not repeat them.
    unconfirmed_s: float = 5.0


PACE = SchedulerPace()


class SchedulerSettings(PluginSettings, frozen=True, kw_only=True):
    alternates_max: Annotated[
        Annotated[int, Meta(ge=0, le=ALTERNATES_MAX)],
        Meta(
            description="How many alternates an instance gets, for its cell to use when the chosen host fails. More survives more failures "
            "without asking again, for larger messages."
        ),
    ] = 2
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
    horizon_s: Annotated[
        Count,
        Meta(
            description="A request that was sent longer ago than this is refused. Rows of ended requests are kept for twice this time. Longer "
            "accepts older messages, for more rows."
        ),
    ] = 24 * 3600
    project_rate: Annotated[
        CountOr0,
        Meta(
            description="How many instances a second one project may ask one scheduler for; what it has not used for a minute may come at "
            "once; 0: any number. A further request is rejected. Operators, who name no project, have no limit. More takes larger bursts; "
            "fewer keeps one project from filling the tables."
        ),
    ] = 2000
    project_records_max: Annotated[
        CountOr0,
        Meta(
            description="How many instances without a host one project may have, which are open or ended in error, and how many server "
            "groups; 0: any number. A further request is rejected. With several schedulers it may be exceeded by a sixteenth for each. More "
            "takes more that waits; fewer needs less room for requests that fail."
        ),
    ] = 100_000
    under_way_max: Annotated[
        Count,
        Meta(
            description="How many instances' orders may be under way to one cell's own broker; others wait on their rows. More uses a distant "
            "broker better; fewer needs less memory while it is away."
        ),
    ] = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        # They are made, so that what is wrong with them is told before anything starts, or is read again.
        plugins_of(self)
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
            # The plugins are made of these again (wiring.py).
            "policy",
            *MULTIPLIERS,
            "metrics_weights",
            "host_subset_size",
            "io_ops_per_host_max",
            "instances_per_host_max",
        )
    ),
)
