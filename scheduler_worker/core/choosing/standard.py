"""The plugins of this package, as the settings choose them. Cheap filters come first."""

from collections.abc import Callable, Mapping

from scheduler_worker.core.aggregates.metadata import INSTANCES_MAX, IO_OPS_MAX
from scheduler_worker.core.choosing.filters.affinity import Affinity
from scheduler_worker.core.choosing.filters.aggregate_extra_specs import AggregateExtraSpecs
from scheduler_worker.core.choosing.filters.aggregate_flavors import AggregateFlavors
from scheduler_worker.core.choosing.filters.aggregate_image_properties import AggregateImageProperties
from scheduler_worker.core.choosing.filters.aggregate_tenants import AggregateTenants
from scheduler_worker.core.choosing.filters.aggregate_traits import AggregateTraits
from scheduler_worker.core.choosing.filters.anti_affinity import AntiAffinity
from scheduler_worker.core.choosing.filters.asked_aggregates import AskedAggregates
from scheduler_worker.core.choosing.filters.asked_hosts import AskedHosts
from scheduler_worker.core.choosing.filters.availability_zone import AvailabilityZone
from scheduler_worker.core.choosing.filters.bare_metal import BareMetalFilter
from scheduler_worker.core.choosing.filters.by_search import CUT, STRUCK
from scheduler_worker.core.choosing.filters.capacity import Capacity
from scheduler_worker.core.choosing.filters.cell_up import CellUp
from scheduler_worker.core.choosing.filters.compute_capabilities import ComputeCapabilities
from scheduler_worker.core.choosing.filters.different_host import DifferentHost
from scheduler_worker.core.choosing.filters.flagged import FLAGGED
from scheduler_worker.core.choosing.filters.image_properties import ImageProperties
from scheduler_worker.core.choosing.filters.limit import LimitFilter
from scheduler_worker.core.choosing.filters.metrics import MetricsFilter
from scheduler_worker.core.choosing.filters.own_aggregates import OwnAggregates
from scheduler_worker.core.choosing.filters.projects import ProjectsFilter
from scheduler_worker.core.choosing.filters.same_host import SameHost
from scheduler_worker.core.choosing.filters.traits import TraitsFilter
from scheduler_worker.core.choosing.plugin_settings import PluginSettings
from scheduler_worker.core.choosing.plugins import Filter, Plugins, Weigher
from scheduler_worker.core.choosing.ways.fewest_fragments import FewestFragments
from scheduler_worker.core.choosing.ways.near_devices import NearDevices
from scheduler_worker.core.choosing.weighers.free_amount import FreeAmount
from scheduler_worker.core.choosing.weighers.image_cache import ImageCache
from scheduler_worker.core.choosing.weighers.metrics import MetricsWeight
from scheduler_worker.core.choosing.weighers.num_instances import NumInstances
from scheduler_worker.core.choosing.weighers.pci import Pci
from scheduler_worker.core.choosing.weighers.preferred import PreferredWeight
from scheduler_worker.core.choosing.weighers.reported import ReportedWeight
from scheduler_worker.core.choosing.weighers.soft_group import SoftGroup
from scheduler_worker.core.choosing.weighers.spread import Spread

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
WEIGHERS: Mapping[str, Callable[[PluginSettings], Weigher]] = {
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
        settings.metrics_weight_multiplier, settings.ratios, settings.metrics_weight_of_unavailable
    ),
    "spread": lambda settings: Spread(settings.spread_over, settings.spread_weight_multiplier),
    "image_cache": lambda settings: ImageCache(settings.image_cache_weight_multiplier),
}


def chosen_plugins(
    settings: PluginSettings,
    more_filters: Mapping[str, Filter] | None = None,
    more_weighers: Mapping[str, Weigher] | None = None,
) -> Plugins:
    """The plugins that the settings choose. `more_...` are those of other packages, by name; the caller has checked that
    each name of the settings is one of these or one of this package.
    """
    more_filters, more_weighers = more_filters or {}, more_weighers or {}
    instances_max = settings.instances_per_host_max
    weighers = [
        more_weighers[name] if name in more_weighers else WEIGHERS[name](settings)
        for name in settings.weighers
    ]
    return Plugins(
        filters=(
            *FLAGGED,
            CellUp(),
            BareMetalFilter(),
            ProjectsFilter(),
            AvailabilityZone(),
            AskedHosts(),
            AskedAggregates(),
            *(
                more_filters[name] if name in more_filters else OPTIONAL_FILTERS[name](settings)
                for name in settings.filters
            ),
            Affinity(),
            AntiAffinity(),
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
        weighers=(PreferredWeight(settings.preferred_weight_multiplier), *weighers),
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
        way_judges=(FewestFragments(), NearDevices()),
    )
