"""Which plugins choose hosts, and how they are tuned."""

from collections.abc import Mapping
from math import isfinite

from msgspec import Struct

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
# An instance gets one of at most so many best hosts.
SUBSET_MAX = 1000


class PluginSettings(Struct, frozen=True, kw_only=True):
    # The filters beside those that are always used; `metrics`, `own_aggregates` and `required_own_aggregates` are more. A plugin of another package is named by its
    # entry point. The order is that of the funnel.
    filters: tuple[str, ...] = FILTERS
    # Each weigher counts by its multiplier: 0 leaves it out, a negative one turns it round.
    weighers: tuple[str, ...] = WEIGHERS
    cpu_weight_multiplier: float = 1.0
    ram_weight_multiplier: float = 1.0
    disk_weight_multiplier: float = 1.0
    hypervisor_version_weight_multiplier: float = 1.0
    num_instances_weight_multiplier: float = 0.0
    io_ops_weight_multiplier: float = -1.0
    pci_weight_multiplier: float = 1.0
    build_failure_weight_multiplier: float = 1e6
    soft_affinity_weight_multiplier: float = 1.0
    soft_anti_affinity_weight_multiplier: float = 1.0
    metrics_weight_multiplier: float = 1.0
    # Keys of aggregates' metadata whose values get as many instances each, such as zones and racks. With a multiplier of
    # about 1000, spreading comes before all free amounts.
    spread_over: tuple[str, ...] = ("availability_zone",)
    spread_weight_multiplier: float = 0.0
    # Hosts that have the image of the request cached.
    image_cache_weight_multiplier: float = 0.0
    # Preferred traits and classes of the request count more than all free amounts together.
    preferred_weight_multiplier: float = 1_000.0
    # The metrics of a host's weight, each with its ratio: "temperature=-1.0". A host that lacks one has the fixed weight.
    metrics_weights: tuple[str, ...] = ()
    metrics_weight_of_unavailable: float = -10_000.0
    # An instance gets one of so many of the best hosts, by chance. Among equal hosts chance decides in any case.
    host_subset_size: int = 1
    # How many builds and the like may be under way on one host (0: any number), and how many instances it may have. A
    # limit on builds refuses requests of a burst that would fit a moment later.
    io_ops_per_host_max: int = 0
    instances_per_host_max: int = 50

    def __post_init__(self) -> None:
        for field in ("filters", "weighers"):
            named = getattr(self, field)
            if twice := [name for name in named if named.count(name) > 1]:
                raise ValueError(f"{field} names {twice[0]!r} twice")
        if self.pci_weight_multiplier < 0:
            raise ValueError(f"pci_weight_multiplier is {self.pci_weight_multiplier:g}, must be at least 0")
        if not 1 <= self.host_subset_size <= SUBSET_MAX:
            raise ValueError(f"host_subset_size is {self.host_subset_size}, must be from 1 to {SUBSET_MAX}")
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
# Numbers that may be negative.
SIGNED = (*MULTIPLIERS, "metrics_weight_of_unavailable")
