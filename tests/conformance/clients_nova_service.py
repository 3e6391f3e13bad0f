"""A Nova service with its SchedulerReportClient, as far as it uses placement, and the data that it sends."""

from collections.abc import Mapping
from typing import Any

from nova import context
from nova.compute.provider_tree import ProviderTree
from nova.objects.compute_node import ComputeNode
from nova.objects.flavor import Flavor
from nova.objects.request_spec import RequestLevelParams, RequestSpec
from nova.scheduler.client.report import SchedulerReportClient
from nova.scheduler.utils import ResourceRequest

PROJECT, USER = "nova-project", "nova-user"


class Service:
    """A Nova service, whose client caches the providers."""

    def __init__(self) -> None:
        self.admin = context.get_admin_context()
        self.client = SchedulerReportClient()

    def tree(self, host: str, name: str) -> ProviderTree:
        return self.client.get_provider_tree_and_ensure_root(self.admin, host, name=name)

    def flush(self, tree: ProviderTree, allocations: Mapping[str, Any] | None = None) -> None:
        self.client.update_from_provider_tree(self.admin, tree, allocations=allocations)

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """The allocations of a consumer, by provider."""
        told = self.client.get_allocs_for_consumer(self.admin, consumer)
        return {provider: each["resources"] for provider, each in told["allocations"].items()}

    def candidates(self, flavor: Flavor) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The allocation requests for an instance of this flavor, and the providers that they name."""
        spec = RequestSpec(
            flavor=flavor, is_bfv=False, request_level_params=RequestLevelParams(), instance_group=None
        )
        requests, summaries, _ = self.client.get_allocation_candidates(
            self.admin, ResourceRequest.from_request_spec(spec)
        )
        return requests, summaries

    def claim(self, consumer: str, request: Mapping[str, Any]) -> bool:
        return bool(self.client.claim_resources(self.admin, consumer, request, PROJECT, USER, "1.36"))


def inventory(total: int, *, reserved: int = 0, ratio: float = 1.0) -> dict[str, float]:
    return {
        "total": total,
        "reserved": reserved,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": ratio,
    }


def flavor(**extra_specs: str) -> Flavor:
    return Flavor(vcpus=2, memory_mb=512, root_gb=0, ephemeral_gb=0, swap=0, extra_specs=extra_specs)


def nested_flavor() -> Flavor:
    specs = {
        "resources:DISK_GB": "10",
        "resources_fpga:CUSTOM_FPGA": "1",
        "trait_fpga:HW_NUMA_ROOT": "required",
        "trait:CUSTOM_NOVA": "required",
    }
    return flavor(**specs)


def compute_node(uuid: str, name: str) -> ComputeNode:
    return ComputeNode(uuid=uuid, host=name, hypervisor_hostname=name)
