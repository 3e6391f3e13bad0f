"""Which plugins choose hosts, and how they are tuned."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Literal

from msgspec import Meta, Struct

from engine.choosing.aggregate_filters import (
    AggregateExtraSpecs,
    AggregateFlavors,
    AggregateImageProperties,
    AggregateTenants,
    AggregateTraits,
    AskedAggregates,
    OwnAggregates,
    ProjectsFilter,
)
from engine.choosing.compounds import FewestFragments, NearDevices, WayJudge
from engine.choosing.filters import (
    CUT,
    FLAGGED,
    STRUCK,
    Affinity,
    AntiAffinity,
    AskedHosts,
    AskedPlace,
    AvailabilityZone,
    BareMetalFilter,
    Capacity,
    CellUp,
    ComputeCapabilities,
    DifferentHost,
    GroupRules,
    ImageProperties,
    LimitFilter,
    MetricsFilter,
    SameHost,
    TraitsFilter,
)
from engine.choosing.plugins import MULTIPLIERS_MAX, Filter, Plugins, Weigher
from engine.choosing.weighers import (
    FreeAmount,
    ImageCache,
    LostShapes,
    MetricsWeight,
    NumInstances,
    Pci,
    PreferredWeight,
    ReportedWeight,
    SoftGroup,
    Spread,
)
from engine.hosts import INSTANCES_MAX, IO_OPS_MAX

# Filters that may be left out. All others say what a host is able to do, and are always used.
FILTERS = (
    *("aggregate_tenants", "aggregate_flavors", "aggregate_traits"),
    *("aggregate_image_properties", "aggregate_extra_specs"),
    *("capabilities", "image_properties", "different_host", "same_host"),
)
WEIGHERS = (
    *("cpu", "ram", "disk", "hypervisor_version", "num_instances"),
    *(
        "io_ops",
        "pci",
        "build_failure",
        "soft_affinity",
        "soft_anti_affinity",
        "metrics",
        "spread",
        "image_cache",
        "fit",
    ),
)
# At most the largest number that a column of a database has for a count.
CountOr0 = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Multiplier = Annotated[float, Meta(ge=-MULTIPLIERS_MAX, le=MULTIPLIERS_MAX)]


# What a request prefers counts more than all free amounts together; its own weights say how much more than each other.
PREFERRED_MULTIPLIER = 1_000.0
# The weight of a host that lacks a metric: it comes after all that have it.
METRICS_UNAVAILABLE = -10_000.0


class PluginSettings(Struct, frozen=True, kw_only=True):
    filters: Annotated[
        tuple[str, ...],
        Meta(
            description="The filters beside those that are always used, in the order of the funnel; metrics, own_aggregates and "
            "required_own_aggregates are more, and other packages bring others by their entry points. More filters remove more "
            "hosts."
        ),
    ] = FILTERS
    weighers: Annotated[
        tuple[str, ...],
        Meta(
            description="The weighers that rank the hosts which pass the filters. A weigher of another package is NAME or NAME=MULTIPLIER."
        ),
    ] = WEIGHERS
    way_judges: Annotated[
        tuple[str, ...],
        Meta(
            description="What values, or strikes, the ways in which a host could give what a request needs from its providers; other packages "
            "bring others by their entry points. More of them need more time for hosts with several providers."
        ),
    ] = ("fewest_fragments", "near_devices")
    policy: Annotated[
        Literal["spread", "fill", "fit"],
        Meta(
            description="Which hosts are best: by spread the emptiest, by fill the fullest, by fit those that lose the least room for usual "
            "shapes. moor:policy names another for a flavor or an aggregate."
        ),
    ] = "spread"
    cpu_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much free processors count. Higher spreads instances by processors; negative fills hosts up; 0 leaves them out."
        ),
    ] = 1.0
    ram_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much free memory counts. Higher spreads instances by memory; negative fills hosts up; 0 leaves it out."
        ),
    ] = 1.0
    disk_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much free disk counts. Higher spreads instances by disk; negative fills hosts up; 0 leaves it out."
        ),
    ] = 1.0
    hypervisor_version_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much a newer hypervisor counts. Higher prefers newer ones; negative prefers older ones."
        ),
    ] = 1.0
    num_instances_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much the number of instances counts. Positive prefers hosts with many instances; negative prefers those with few."
        ),
    ] = 0.0
    io_ops_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much builds under way on a host count. Negative avoids busy hosts, the more the lower it is; positive prefers "
            "them."
        ),
    ] = -1.0
    pci_weight_multiplier: Annotated[
        Annotated[float, Meta(ge=0, le=MULTIPLIERS_MAX)],
        Meta(
            description="How much free PCI devices count. Higher sends requests for devices to hosts that have many, and keeps all others away "
            "from these."
        ),
    ] = 1.0
    build_failure_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much failed builds since the last success count against a host. Higher avoids such hosts before all else; 0 "
            "ignores failures."
        ),
    ] = 1e6
    soft_affinity_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much members of a soft-affinity group attract each other. Higher puts more of them on one host."
        ),
    ] = 1.0
    soft_anti_affinity_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much members of a soft-anti-affinity group repel each other. Higher spreads them more."
        ),
    ] = 1.0
    metrics_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much the metrics of metrics_weights count together. Higher goes by them before free amounts; 0 leaves them out."
        ),
    ] = 1.0
    spread_over: Annotated[
        tuple[str, ...],
        Meta(
            description="The keys of aggregates' metadata whose values get as many instances each, such as zones and racks. They count only "
            "with a spread_weight_multiplier."
        ),
    ] = ("availability_zone",)
    spread_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much an even spread over zones or racks counts. About 1000 puts it before all free amounts; 0 leaves it out."
        ),
    ] = 0.0
    image_cache_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much it counts that a host has the image of the request cached. Higher makes builds faster, and loads such hosts "
            "more; 0 leaves it out."
        ),
    ] = 0.0
    fit_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much lost room for the usual shapes counts under the policy fit. Higher goes by it before builds under way and soft "
            "groups."
        ),
    ] = 3.0
    metrics_weights: Annotated[
        tuple[str, ...],
        Meta(
            description="The metrics of a host's weight, each with its ratio, as temperature=-1.0. A larger ratio counts more; a negative one "
            "prefers low values."
        ),
    ] = ()
    host_subset_size: Annotated[
        Annotated[int, Meta(ge=1, le=1000)],
        Meta(
            description="An instance gets one of so many best hosts, by chance. More makes conflicts of several schedulers rarer; 1 always "
            "takes the best."
        ),
    ] = 1
    io_ops_per_host_max: Annotated[
        CountOr0,
        Meta(
            description="How many builds and the like may be under way on one host; 0: any number. Lower protects hosts, and refuses requests "
            "of a burst that would fit a moment later."
        ),
    ] = 0
    instances_per_host_max: Annotated[
        CountOr0,
        Meta(
            description="How many instances a host may have; 0: any number. Higher packs hosts denser; lower loses fewer instances with a host."
        ),
    ] = 50

    def __post_init__(self) -> None:
        for field in ("filters", "weighers", "way_judges"):
            named = getattr(self, field)
            if twice := [name for name in named if named.count(name) > 1]:
                raise ValueError(f"{field} names {twice[0]!r} twice")
        _ = self.ratios
        if self.policy == "fit" and "fit" not in self.weighers:
            raise ValueError("policy is 'fit', and weighers does not name the weigher fit")
        if "metrics" in self.filters and not self.metrics_weights:
            raise ValueError("filters names 'metrics', and metrics_weights names no metric for it")

    @property
    def ratios(self) -> Mapping[str, float]:
        """How much each metric counts in the metrics weigher, by the metric's name. Raises ValueError for a text in the
        settings that is wrong.
        """
        ratios: dict[str, float] = {}
        for text in self.metrics_weights:
            name, _, ratio = (part.strip() for part in text.rpartition("="))
            try:
                ratios[name] = float(ratio)
            except ValueError:
                name = ""
            if not name or not isfinite(ratios[name]) or abs(ratios[name]) > MULTIPLIERS_MAX:
                raise ValueError(
                    f"metrics_weights has {text!r}, must be NAME=NUMBER, such as temperature=-1.0, at most "
                    f"{MULTIPLIERS_MAX:g}"
                )
        return ratios


MULTIPLIERS = tuple(name for name in PluginSettings.__struct_fields__ if name.endswith("_weight_multiplier"))

# The plugins of this package, as the settings choose them. Cheap filters come first.


# Filters that settings may leave out, and weighers, by the names that settings have for them.
OPTIONAL_FILTERS: Mapping[str, Callable[[PluginSettings], Filter]] = {
    "capabilities": lambda _: ComputeCapabilities(),
    "image_properties": lambda _: ImageProperties(),
    "different_host": lambda _: DifferentHost(),
    "same_host": lambda _: SameHost(),
    "aggregate_tenants": lambda _: AggregateTenants(),
    "aggregate_flavors": lambda _: AggregateFlavors(),
    "aggregate_traits": lambda _: AggregateTraits(),
    "aggregate_image_properties": lambda _: AggregateImageProperties(),
    "aggregate_extra_specs": lambda _: AggregateExtraSpecs(),
    "own_aggregates": lambda _: OwnAggregates(),
    "required_own_aggregates": lambda _: OwnAggregates(required=True),
    "metrics": lambda settings: MetricsFilter(tuple(settings.ratios)),
}
STANDARD_WEIGHERS: Mapping[str, Callable[[PluginSettings], Weigher]] = {
    "cpu": lambda settings: FreeAmount("cpu", "VCPU", settings.cpu_weight_multiplier),
    "ram": lambda settings: FreeAmount("ram", "MEMORY_MB", settings.ram_weight_multiplier),
    "disk": lambda settings: FreeAmount("disk", "DISK_GB", settings.disk_weight_multiplier),
    "hypervisor_version": lambda settings: ReportedWeight(
        "hypervisor version", "hypervisor_version", settings.hypervisor_version_weight_multiplier
    ),
    "num_instances": lambda settings: NumInstances(settings.num_instances_weight_multiplier),
    "io_ops": lambda settings: ReportedWeight(
        "io ops", "io_ops", settings.io_ops_weight_multiplier, minimum=0.0
    ),
    "pci": lambda settings: Pci(settings.pci_weight_multiplier),
    "build_failure": lambda settings: ReportedWeight(
        "build failure", "failed_builds", settings.build_failure_weight_multiplier, less=True
    ),
    "soft_affinity": lambda settings: SoftGroup("soft-affinity", settings.soft_affinity_weight_multiplier),
    "soft_anti_affinity": lambda settings: SoftGroup(
        "soft-anti-affinity", settings.soft_anti_affinity_weight_multiplier
    ),
    "metrics": lambda settings: MetricsWeight(
        settings.metrics_weight_multiplier, settings.ratios, METRICS_UNAVAILABLE
    ),
    "spread": lambda settings: Spread(settings.spread_over, settings.spread_weight_multiplier),
    "fit": lambda settings: LostShapes(settings.fit_weight_multiplier),
    "image_cache": lambda settings: ImageCache(settings.image_cache_weight_multiplier),
}


STANDARD_WAY_JUDGES: Mapping[str, Callable[[], WayJudge]] = {
    "fewest_fragments": FewestFragments,
    "near_devices": NearDevices,
}


def chosen_plugins(
    settings: PluginSettings,
    more_filters: Mapping[str, Filter] | None = None,
    more_weighers: Mapping[str, Weigher] | None = None,
    more_judges: Mapping[str, WayJudge] | None = None,
) -> Plugins:
    """The plugins that the settings choose. `more_...` are those of other packages, by name; the caller has checked that
    each name of the settings is one of these or one of this package.
    """
    more_filters, more_weighers, more_judges = more_filters or {}, more_weighers or {}, more_judges or {}
    instances_max = settings.instances_per_host_max
    weighers = [
        more_weighers[name] if name in more_weighers else STANDARD_WEIGHERS[name](settings)
        for name in settings.weighers
    ]
    return Plugins(
        filters=(
            *FLAGGED,
            CellUp(),
            BareMetalFilter(),
            ProjectsFilter(),
            AvailabilityZone(),
            AskedPlace(),
            AskedHosts(),
            AskedAggregates(),
            *(
                more_filters[name] if name in more_filters else OPTIONAL_FILTERS[name](settings)
                for name in settings.filters
            ),
            Affinity(),
            AntiAffinity(),
            GroupRules(),
            CUT,
            TraitsFilter(),
            LimitFilter(
                *("io ops", "io_ops", "builds and the like under way", IO_OPS_MAX),
                settings.io_ops_per_host_max,
            ),
            LimitFilter("instances", "instances", "instances", INSTANCES_MAX, instances_max),
            Capacity(),
            STRUCK,
        ),
        weighers=(PreferredWeight(PREFERRED_MULTIPLIER), *weighers),
        policy=settings.policy,
        instances_max=instances_max,
        subset=settings.host_subset_size,
        read_by_others=frozenset(
            field
            for reads in (
                *(each.reads for each in more_filters.values()),
                *(each.reads for each in more_weighers.values()),
            )
            for field in reads
        ),
        way_judges=tuple(
            more_judges[name] if name in more_judges else STANDARD_WAY_JUDGES[name]()
            for name in settings.way_judges
        ),
    )
