"""What the filters, weighers and options of Nova's scheduler are here: the data of `moor nova settings` and of the tables in docs/nova.md.

Pure data. An option that stands here with a reason instead of a setting has no equal; the reason is what operators read.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Key = tuple[str, str]


class FilterHere(Struct, frozen=True):
    """What a filter of Nova's is here. Without a name in `filters` it is always used, or there is none, as `says` tells."""

    says: str
    name: str = ""
    has_equal: bool = True


class WeigherHere(Struct, frozen=True):
    name: str
    says: str


class OptionHere(Struct, frozen=True):
    """An option whose value becomes that of a setting."""

    section: str
    setting: str
    kind: Literal["whole", "number", "true or false", "text"]
    says: str = ""


_ALWAYS = "always used"

FILTERS: Mapping[str, FilterHere] = {
    "ComputeFilter": FilterHere(f"{_ALWAYS}: the filters `up` and `enabled`"),
    "ComputeCapabilitiesFilter": FilterHere("the filter `capabilities`", "capabilities"),
    "ImagePropertiesFilter": FilterHere("the filter `image_properties`", "image_properties"),
    "ServerGroupAntiAffinityFilter": FilterHere(f"{_ALWAYS}: the filter `anti-affinity`"),
    "ServerGroupAffinityFilter": FilterHere(f"{_ALWAYS}: the filter `affinity`"),
    "DifferentHostFilter": FilterHere("the filter `different_host`", "different_host"),
    "SameHostFilter": FilterHere("the filter `same_host`", "same_host"),
    "AggregateImagePropertiesIsolation": FilterHere(
        "the filter `aggregate_image_properties`", "aggregate_image_properties"
    ),
    "AggregateInstanceExtraSpecsFilter": FilterHere(
        "the filter `aggregate_extra_specs`; only keys with the scope `aggregate_instance_extra_specs:`",
        "aggregate_extra_specs",
    ),
    "AggregateMultiTenancyIsolation": FilterHere("the filter `aggregate_tenants`", "aggregate_tenants"),
    "AggregateTypeAffinityFilter": FilterHere("the filter `aggregate_flavors`", "aggregate_flavors"),
    "IoOpsFilter": FilterHere("`io_ops_per_host_max`, from `max_io_ops_per_host`"),
    "AggregateIoOpsFilter": FilterHere(
        "`io_ops_per_host_max`, from `max_io_ops_per_host`; aggregates' `max_io_ops_per_host` counts instead"
    ),
    "NumInstancesFilter": FilterHere("`instances_per_host_max`, from `max_instances_per_host`"),
    "AggregateNumInstancesFilter": FilterHere(
        "`instances_per_host_max`, from `max_instances_per_host`; aggregates' `max_instances_per_host` counts instead"
    ),
    "NUMATopologyFilter": FilterHere(
        "a request with NUMA cells, pinned CPUs or huge pages is refused, and only nova-scheduler serves it",
        has_equal=False,
    ),
    "PciPassthroughFilter": FilterHere(
        f"{_ALWAYS}, for aliases, with PCI in placement (`[filter_scheduler] pci_in_placement`); other devices are refused"
    ),
    "AllHostsFilter": FilterHere("not needed: it lets every host pass"),
    "IsolatedHostsFilter": FilterHere(
        "a required trait of the image keeps it on certain hosts, and an aggregate with `filter_tenant_id` keeps others away",
        has_equal=False,
    ),
    "JsonFilter": FilterHere(
        "no query over the scheduler's inner names; `capabilities:` and traits ask for the same",
        has_equal=False,
    ),
    "MetricsFilter": FilterHere(
        "metrics of Nova's hosts are in the databases of their cells alone, and no scheduler here reads them",
        has_equal=False,
    ),
    "SimpleCIDRAffinityFilter": FilterHere(
        "hosts tell no addresses; zones and aggregates say which hosts are near each other", has_equal=False
    ),
}
# Without `enabled_filters`.
FILTERS_BY_DEFAULT = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)
IO_OPS_FILTERS = ("IoOpsFilter", "AggregateIoOpsFilter")
INSTANCES_FILTERS = ("NumInstancesFilter", "AggregateNumInstancesFilter")
IO_OPS_BY_DEFAULT, INSTANCES_BY_DEFAULT = 8, 50

ALL_WEIGHERS = "nova.scheduler.weights.all_weighers"
ALL_FILTERS = "nova.scheduler.filters.all_filters"
WEIGHERS: Mapping[str, WeigherHere] = {
    "RAMWeigher": WeigherHere("ram", "`ram`"),
    "CPUWeigher": WeigherHere("cpu", "`cpu`"),
    "DiskWeigher": WeigherHere("disk", "`disk`"),
    "HypervisorVersionWeigher": WeigherHere("hypervisor_version", "`hypervisor_version`"),
    "NumInstancesWeigher": WeigherHere("num_instances", "`num_instances`"),
    "IoOpsWeigher": WeigherHere("io_ops", "`io_ops`"),
    "PCIWeigher": WeigherHere("pci", "`pci`: by the devices that are in placement"),
    "BuildFailureWeigher": WeigherHere(
        "build_failure",
        "`build_failure`; failed builds of Nova's hosts are in the databases of their cells alone, so that it weighs only ours",
    ),
    "ServerGroupSoftAffinityWeigher": WeigherHere("soft_affinity", "`soft_affinity`"),
    "ServerGroupSoftAntiAffinityWeigher": WeigherHere("soft_anti_affinity", "`soft_anti_affinity`"),
    "MetricsWeigher": WeigherHere(
        "", "none: metrics of Nova's hosts are in the databases of their cells alone"
    ),
    "ImagePropertiesWeigher": WeigherHere("", "none: schedulers know no images of running instances"),
    "CrossCellWeigher": WeigherHere("", "none: a move stays in its cell unless the request says otherwise"),
}

# In the table of the schedulers' settings: how hosts are chosen.
_CHOICE = "scheduler"
# In the table of the worker itself: how Nova's RabbitMQ is used.
_WORKER = "nova_scheduler"
_MULTIPLIERS = (
    *("ram", "cpu", "disk", "hypervisor_version", "num_instances", "io_ops", "pci"),
    *("soft_affinity", "soft_anti_affinity", "build_failure"),
)
OPTIONS: Mapping[Key, OptionHere] = {
    ("filter_scheduler", "host_subset_size"): OptionHere(_CHOICE, "host_subset_size", "whole"),
    **{
        ("filter_scheduler", f"{name}_weight_multiplier"): OptionHere(
            _CHOICE, f"{name}_weight_multiplier", "number"
        )
        for name in _MULTIPLIERS
    },
    ("DEFAULT", "control_exchange"): OptionHere(_WORKER, "exchange", "text"),
    ("DEFAULT", "rpc_response_timeout"): OptionHere(_WORKER, "rpc_timeout_s", "number"),
    ("oslo_messaging_rabbit", "amqp_durable_queues"): OptionHere(_WORKER, "durable", "true or false"),
    ("oslo_messaging_rabbit", "amqp_auto_delete"): OptionHere(_WORKER, "auto_delete", "true or false"),
    ("oslo_messaging_rabbit", "rabbit_quorum_queue"): OptionHere(_WORKER, "quorum", "true or false"),
    ("oslo_messaging_rabbit", "rabbit_transient_quorum_queue"): OptionHere(
        _WORKER, "transient_quorum", "true or false"
    ),
    ("oslo_messaging_rabbit", "rabbit_transient_queues_ttl"): OptionHere(
        _WORKER, "transient_expires_s", "whole"
    ),
}
MAX_ATTEMPTS: Key = ("scheduler", "max_attempts")
# Options whose value decides by code, with what becomes of them, for the page.
DECIDED: Mapping[Key, str] = {
    ("filter_scheduler", "enabled_filters"): "`scheduler.filters`, as the table of filters says",
    ("filter_scheduler", "weight_classes"): "`scheduler.weighers`, as the table of weighers says",
    MAX_ATTEMPTS: "`scheduler.alternates_max`: one less",
    ("filter_scheduler", "max_io_ops_per_host"): "`scheduler.io_ops_per_host_max`, if its filter is enabled",
    (
        "filter_scheduler",
        "max_instances_per_host",
    ): "`scheduler.instances_per_host_max`, if its filter is enabled",
    ("scheduler", "limit_tenants_to_placement_aggregate"): "the filter `own_aggregates`",
    (
        "scheduler",
        "placement_aggregate_required_for_tenants",
    ): "the filter `required_own_aggregates`, with the option above",
    ("scheduler", "enable_isolated_aggregate_filtering"): "the filter `aggregate_traits`",
}
# With these values an option asks for nothing that is missing here.
_OFF = frozenset({"false", "0", "no", "off", "f", "n", ""})
_OFF_NUMBERS = frozenset({"0", "0.0", "-0", ""})


class NoEqual(Struct, frozen=True):
    """An option that has no equal here, why, and with which values nothing is lost by that."""

    why: str
    harmless: frozenset[str] = frozenset()


NO_EQUAL: Mapping[Key, NoEqual] = {
    ("scheduler", "discover_hosts_in_cells_interval"): NoEqual(
        "no scheduler here maps new hosts to cells: run `nova-manage cell_v2 discover_hosts` by a timer",
        frozenset({"-1"}),
    ),
    ("scheduler", "max_placement_results"): NoEqual(
        "all hosts are looked at, in memory", frozenset({"1000"})
    ),
    ("scheduler", "workers"): NoEqual(
        "start as many processes of `moor run nova-scheduler` as are wanted; one is usually enough"
    ),
    ("scheduler", "query_placement_for_image_type_support"): NoEqual(
        "as a property of the image, `trait:COMPUTE_IMAGE_TYPE_RAW=required` asks for it", _OFF
    ),
    ("scheduler", "query_placement_for_routed_network_aggregates"): NoEqual(
        "ports are bound to segments by Neutron; a segment as a sharing provider with `IPV4_ADDRESS` asks for the same",
        _OFF,
    ),
    ("scheduler", "image_metadata_prefilter"): NoEqual(
        "ask for the traits, as properties of the image", _OFF
    ),
    ("filter_scheduler", "shuffle_best_same_weighed_hosts"): NoEqual(
        "always so: among equal hosts chance decides", frozenset({*_OFF, "true", "1", "yes", "on"})
    ),
    ("filter_scheduler", "track_instance_changes"): NoEqual(
        "placement's feed tells what changes; with no nova-scheduler left it may be false on the computes, which saves their casts",
        frozenset({"true", "1", "yes", "on", *_OFF}),
    ),
    ("filter_scheduler", "image_properties_default_architecture"): NoEqual(
        "set `hw_architecture` on the images"
    ),
    ("filter_scheduler", "isolated_images"): NoEqual(FILTERS["IsolatedHostsFilter"].says, frozenset({""})),
    ("filter_scheduler", "isolated_hosts"): NoEqual(FILTERS["IsolatedHostsFilter"].says, frozenset({""})),
    ("filter_scheduler", "restrict_isolated_hosts_to_isolated_images"): NoEqual(
        FILTERS["IsolatedHostsFilter"].says, frozenset({*_OFF, "true"})
    ),
    ("filter_scheduler", "aggregate_image_properties_isolation_namespace"): NoEqual(
        "the properties that aggregates may isolate by are known by name", frozenset({""})
    ),
    ("filter_scheduler", "aggregate_image_properties_isolation_separator"): NoEqual(
        "the properties that aggregates may isolate by are known by name", frozenset({".", ""})
    ),
    ("filter_scheduler", "image_props_weight_multiplier"): NoEqual(
        "schedulers know no images of running instances", _OFF_NUMBERS
    ),
    ("filter_scheduler", "image_props_weight_setting"): NoEqual(
        "schedulers know no images of running instances", frozenset({""})
    ),
    ("filter_scheduler", "cross_cell_move_weight_multiplier"): NoEqual(
        "a move stays in its cell unless the request says otherwise",
        frozenset({"1000000", "1000000.0", "1e6"}),
    ),
    ("filter_scheduler", "available_filters"): NoEqual(
        "a filter of another package is one of the entry points `moorage.filters`", frozenset({ALL_FILTERS})
    ),
    **{
        ("metrics", name): NoEqual(
            "metrics of Nova's hosts are in the databases of their cells alone, and no scheduler here reads them"
        )
        for name in ("weight_multiplier", "weight_setting", "required", "weight_of_unavailable")
    },
}
# Nova's other services still read these, so that they stay as they are.
_INVENTORY = "nova-compute writes it into the host's inventory, and schedulers read it there"
STAYS: Mapping[Key, str] = {
    **{
        ("DEFAULT", f"{initial}{name}_allocation_ratio"): _INVENTORY
        for name in ("cpu", "ram", "disk")
        for initial in ("", "initial_")
    },
    **{
        ("DEFAULT", name): _INVENTORY
        for name in ("reserved_host_cpus", "reserved_host_memory_mb", "reserved_host_disk_mb")
    },
    ("DEFAULT", "service_down_time"): "Nova's API judges by it which services are up",
    (
        "DEFAULT",
        "allow_resize_to_same_host",
    ): "Nova's API and conductor judge by it, and name the hosts to ignore",
    ("DEFAULT", "max_concurrent_builds"): "nova-compute holds builds back by it",
    ("DEFAULT", "default_schedule_zone"): "Nova's API writes it into each request",
    ("DEFAULT", "default_availability_zone"): "Nova's API tells the zone of a host by it",
    ("cinder", "cross_az_attach"): "Nova's API judges by it",
    (
        "DEFAULT",
        "long_rpc_timeout",
    ): "nova-conductor sends it with each call, and an answer after it is not sent",
    (
        "compute",
        "consecutive_build_service_disable_threshold",
    ): "nova-compute disables itself by it, which schedulers see",
    ("pci", "report_in_placement"): "nova-compute writes its devices into placement by it",
    (
        "filter_scheduler",
        "pci_in_placement",
    ): "Nova's API and conductors read it: requests then ask for the devices of aliases as classes",
}
# Every line of these sections is told, so that an unknown one is no surprise later.
SCHEDULERS_OWN = ("scheduler", "filter_scheduler", "metrics")
