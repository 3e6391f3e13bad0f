"""Which plugins choose hosts, and how they are tuned."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated

from msgspec import Meta, Struct

from scheduler_worker.core.choosing.plugins import MULTIPLIERS_MAX

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
    ),
)
# At most the largest number that a column of a database has for a count.
CountOr0 = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Multiplier = Annotated[float, Meta(ge=-MULTIPLIERS_MAX, le=MULTIPLIERS_MAX)]


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
    preferred_weight_multiplier: Annotated[
        Multiplier,
        Meta(
            description="How much the traits and classes count that a request prefers. At the default they count more than all free amounts "
            "together."
        ),
    ] = 1_000.0
    metrics_weights: Annotated[
        tuple[str, ...],
        Meta(
            description="The metrics of a host's weight, each with its ratio, as temperature=-1.0. A larger ratio counts more; a negative one "
            "prefers low values."
        ),
    ] = ()
    metrics_weight_of_unavailable: Annotated[
        Annotated[float, Meta(ge=-1e9, le=1e9)],
        Meta(
            description="The weight of a host that lacks one of these metrics. Lower avoids such hosts more."
        ),
    ] = -10_000.0
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
        for field in ("filters", "weighers"):
            named = getattr(self, field)
            if twice := [name for name in named if named.count(name) > 1]:
                raise ValueError(f"{field} names {twice[0]!r} twice")
        _ = self.ratios
        if "metrics" in self.filters and not self.metrics_weights:
            raise ValueError("filters names 'metrics', and metrics_weights names no metric for it")
        total = sum(abs(getattr(self, name)) for name in MULTIPLIERS)
        if total > MULTIPLIERS_MAX:
            raise ValueError(
                f"{', '.join(MULTIPLIERS)} add up to {total:g}, must be at most {MULTIPLIERS_MAX:g} together"
            )

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
