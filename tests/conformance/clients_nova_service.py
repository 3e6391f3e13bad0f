"""A Nova service with its SchedulerReportClient, as far as it uses placement, and the data that it sends."""

from collections.abc import Callable, Iterable, Mapping
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
    """A Nova service, whose client caches the providers. Providers are named by the first characters of their ids."""

    def __init__(self) -> None:
        self.admin = context.get_admin_context()
        self.client = SchedulerReportClient()

    def does(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What this method of its client returns."""
        return getattr(self.client, method)(self.admin, *arguments, **named)

    def refuses(self, call: Callable[..., object], *arguments: Any) -> str:
        """The name of the exception that the call raises."""
        try:
            return f"returned {call(*arguments)!r}"
        except Exception as refused:  # noqa: BLE001 - whichever it is, is what is to be seen
            return type(refused).__name__

    def tree(self, host: str, name: str) -> ProviderTree:
        return self.does("get_provider_tree_and_ensure_root", host, name=name)

    def flush(self, tree: ProviderTree, allocations: Mapping[str, Any] | None = None) -> object:
        return self.does("update_from_provider_tree", tree, allocations=allocations)

    def write(
        self,
        host: str,
        name: str,
        inventories: Mapping[str, Mapping[str, Any]],
        *,
        traits: Mapping[str, Iterable[str]] = {},
        aggregates: Iterable[str] = (),
        allocations: Mapping[str, Any] | None = None,
    ) -> object:
        """Change the tree of this host, and send it. Providers that are not there yet become children."""
        tree = self.tree(host, name)
        for number, (provider, each) in enumerate(inventories.items()):
            if not tree.exists(provider):
                tree.new_child(f"{name}_{number}", host, uuid=provider)
            tree.update_inventory(provider, each)
        for provider, names in traits.items():
            tree.update_traits(provider, names)
        if aggregates:
            tree.update_aggregates(host, aggregates)
        return self.flush(tree, allocations)

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """The allocations of a consumer, by provider."""
        told = self.does("get_allocs_for_consumer", consumer)
        return {provider: each["resources"] for provider, each in told["allocations"].items()}

    def candidates(self, flavor: Flavor) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The allocation requests for an instance of this flavor, and the providers that they name."""
        spec = RequestSpec(
            flavor=flavor, is_bfv=False, request_level_params=RequestLevelParams(), instance_group=None
        )
        requests, summaries, _ = self.does(
            "get_allocation_candidates", ResourceRequest.from_request_spec(spec)
        )
        return requests, summaries

    def claim(self, consumer: str, request: Mapping[str, Any]) -> bool:
        return bool(self.does("claim_resources", consumer, request, PROJECT, USER, "1.36"))


def inventory(total: int, *, reserved: int = 0, ratio: float = 1.0) -> dict[str, float]:
    limits = {"min_unit": 1, "max_unit": total, "step_size": 1, "allocation_ratio": ratio}
    return {"total": total, "reserved": reserved, **limits}


def flavor(**extra_specs: str) -> Flavor:
    return Flavor(vcpus=2, memory_mb=512, root_gb=0, ephemeral_gb=0, swap=0, extra_specs=extra_specs)


NESTED = {
    "resources:DISK_GB": "10",
    "resources_fpga:CUSTOM_FPGA": "1",
    "trait_fpga:HW_NUMA_ROOT": "required",
    "trait:CUSTOM_NOVA": "required",
}


def compute_node(uuid: str, name: str) -> ComputeNode:
    return ComputeNode(uuid=uuid, host=name, hypervisor_hostname=name)
