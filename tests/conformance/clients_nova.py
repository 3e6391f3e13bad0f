"""Nova's own published SchedulerReportClient, used as Nova's computes, conductors and schedulers use it.

The Python of its own environment runs it: `python -m tests.conformance.clients_nova CONFIG_FILE TITLE`, with Nova's own
configuration, which says where placement is and how to authenticate.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova import config, context, objects
from nova.compute.provider_tree import ProviderTree
from nova.objects.compute_node import ComputeNode
from nova.objects.flavor import Flavor
from nova.objects.request_spec import RequestLevelParams, RequestSpec
from nova.scheduler.client.report import SchedulerReportClient
from nova.scheduler.utils import ResourceRequest

from tests.conformance.clients_steps import Step, are_well

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


HOST = "d0000000-0000-4000-8000-000000000001"
OTHER = "d0000000-0000-4000-8000-000000000002"
NUMA = ("d0000000-0000-4000-8000-0000000000a0", "d0000000-0000-4000-8000-0000000000a1")
STORAGE = "d0000000-0000-4000-8000-00000000005a"
RACK = "b0000000-0000-4000-8000-000000000001"
POOL = "b0000000-0000-4000-8000-000000000002"
INSTANCE = "60000000-0000-4000-8000-000000000001"
MIGRATION = "60000000-0000-4000-8000-000000000002"
BIG = "60000000-0000-4000-8000-000000000003"
# The roots, by their names.
NAMES = {HOST: "nova-host", OTHER: "nova-other", STORAGE: "nova-storage"}
CPUS, MEMORY = {"VCPU": inventory(16, ratio=2.0)}, {"MEMORY_MB": inventory(8192, reserved=512)}
STOCK = {**CPUS, **MEMORY}
FPGAS = {"CUSTOM_FPGA": inventory(2)}
LICENSED = {**STOCK, "CUSTOM_LICENCE": inventory(1)}
IN_NUMA = {"VCPU": inventory(8, ratio=2.0), **FPGAS}
HELD = {HOST: {"VCPU": 2, "MEMORY_MB": 512}, NUMA[0]: {"CUSTOM_FPGA": 1}, STORAGE: {"DISK_GB": 10}}
ON_OTHER = {"allocations": {OTHER: {"resources": HELD[HOST]}}}
FPGAS_MORE = {NUMA[1]: {"resources": {"CUSTOM_FPGA": 2}}}


def one_cpu(amount: int = 1) -> dict[str, Any]:
    return {"allocations": {OTHER: {"resources": {"VCPU": amount}}}}


def last(*seen: Any) -> Any:
    """What is done one after another, and seen in the end."""
    return seen[-1]


class Cloud:
    """A compute and a scheduler, each with its cache, and what is seen without a cache."""

    def __init__(self) -> None:
        self.compute, self.scheduler = Service(), Service()

    def seen(self, service: Service | None = None, root: str = HOST) -> Any:
        """The tree of this root, as this service has it or without a cache."""
        return (service or Service()).tree(root, NAMES[root])

    def outdated(self) -> tuple[str, int]:
        """A scheduler writes what it knew before a compute did."""
        old = self.seen(self.scheduler)
        self.compute.write(HOST, NAMES[HOST], {HOST: {**STOCK, "VCPU": inventory(32)}})
        old.update_inventory(HOST, {**STOCK, "VCPU": inventory(64)})
        refused = self.compute.refuses(self.scheduler.flush, old)
        return refused, self.seen().data(HOST).inventory["VCPU"]["total"]

    def reshaped(self) -> Any:
        """A compute reshapes after an upgrade, so it has just been restarted."""
        compute = Service()
        self.seen(compute)
        held = compute.does("get_allocations_for_provider_tree", NAMES[HOST])
        claimed = held[INSTANCE]["allocations"]
        claimed[NUMA[0]]["resources"]["VCPU"] = claimed[HOST]["resources"].pop("VCPU")
        stocks = {HOST: MEMORY, **dict.fromkeys(NUMA, IN_NUMA)}
        compute.write(HOST, NAMES[HOST], stocks, allocations=held)
        return {*held}, compute.held(INSTANCE), {each: {*self.seen().data(each).inventory} for each in stocks}

    def written_twice(self) -> tuple[bool, str]:
        """With the generation that was read."""
        body = self.compute.does("get_allocs_for_consumer", INSTANCE)
        wrote = self.compute.does("put_allocations", INSTANCE, body)
        return wrote, self.compute.refuses(self.compute.does, "put_allocations", INSTANCE, body)

    def moved(self, source: str, target: str) -> bool:
        """Does the target hold then all that the source held, and the source nothing?"""
        before = self.compute.held(source)
        moved = self.compute.does("move_allocations", source, target)
        return moved and (self.compute.held(source), self.compute.held(target)) == ({}, before)


def steps(cloud: Cloud) -> Sequence[Step]:
    compute, scheduler, seen = cloud.compute, cloud.scheduler, cloud.seen
    trees = (
        Step(
            "get_provider_tree_and_ensure_root creates a provider",
            lambda: seen(compute).get_provider_uuids(),
            [HOST],
        ),
        Step(
            "update_from_provider_tree creates its children, with inventories and traits",
            lambda: compute.write(
                HOST,
                NAMES[HOST],
                {HOST: STOCK, **dict.fromkeys(NUMA, FPGAS)},
                traits={
                    HOST: ["HW_CPU_X86_AVX", "COMPUTE_NODE", "CUSTOM_NOVA"],
                    **dict.fromkeys(NUMA, ("CUSTOM_NUMA_NODE", "HW_NUMA_ROOT")),
                },
            ),
        ),
        Step(
            "another service sees the same tree",
            lambda: (
                {*seen(scheduler).get_provider_uuids_in_tree(NUMA[1])},
                seen(scheduler).data(HOST).inventory,
                seen(scheduler).data(HOST).traits,
                seen(scheduler).data(NUMA[0]).parent_uuid,
                seen(scheduler).data(NUMA[0]).inventory,
            ),
            ({HOST, *NUMA}, STOCK, {"HW_CPU_X86_AVX", "COMPUTE_NODE", "CUSTOM_NOVA"}, HOST, FPGAS),
        ),
        Step(
            "an unchanged tree is flushed without a request",
            lambda: (
                seen(compute).data(HOST).generation
                - last(compute.flush(seen(compute)), seen(compute).data(HOST).generation)
            ),
            0,
        ),
        Step(
            "set_inventory_for_provider, with a class that is new",
            lambda: last(
                seen(compute, OTHER),
                compute.does("set_inventory_for_provider", OTHER, LICENSED),
                seen(scheduler, OTHER).data(OTHER).inventory,
            ),
            LICENSED,
        ),
        Step(
            "set_inventory_for_provider, without it",
            lambda: compute.does("set_inventory_for_provider", OTHER, STOCK),
        ),
        Step(
            "get_provider_by_name, get_resource_provider_name",
            lambda: (
                compute.does("get_provider_by_name", NAMES[OTHER])["uuid"],
                compute.does("get_resource_provider_name", OTHER),
            ),
            (OTHER, NAMES[OTHER]),
        ),
        Step(
            "a sharing storage pool is part of its hosts' cached trees",
            lambda: last(
                compute.write(
                    STORAGE,
                    NAMES[STORAGE],
                    {STORAGE: {"DISK_GB": inventory(1000)}},
                    traits={STORAGE: ["MISC_SHARES_VIA_AGGREGATE"]},
                    aggregates=[POOL],
                ),
                compute.write(HOST, NAMES[HOST], {}, aggregates=[POOL]),
                seen().exists(STORAGE),
            ),
            wanted=True,
        ),
        Step(
            "a write from an outdated cache is a conflict",
            cloud.outdated,
            ("ResourceProviderUpdateConflict", 32),
        ),
        Step(
            "and succeeds with a fresh cache",
            lambda: last(scheduler.write(HOST, NAMES[HOST], {HOST: STOCK}), seen().data(HOST).inventory),
            STOCK,
        ),
        Step(
            "aggregate_add_host, aggregate_remove_host",
            lambda: (
                compute.does("aggregate_add_host", RACK, host_name=NAMES[OTHER]),
                seen(root=OTHER).in_aggregates(OTHER, [RACK]),
                scheduler.does("aggregate_remove_host", RACK, NAMES[OTHER]),
                seen(root=OTHER).in_aggregates(OTHER, [RACK]),
            )[1::2],
            (True, False),
        ),
    )
    claims = (
        # The answer has whole trees, also where the question names only their root.
        Step(
            "get_allocation_candidates for a flavor",
            lambda: _told(*scheduler.candidates(flavor())),
            ({frozenset({HOST}), frozenset({OTHER})}, {HOST, *NUMA, OTHER}),
        ),
        Step(
            "its summaries",
            lambda: scheduler.candidates(flavor())[1][HOST]["resources"]["VCPU"],
            {"capacity": 32, "used": 0},
        ),
        Step(
            "get_allocation_candidates for one with groups, a subtree, a shared disk, and traits",
            lambda: sorted(
                (sorted(each["allocations"]), each["mappings"]["_fpga"])
                for each in scheduler.candidates(flavor(**NESTED))[0]
            ),
            sorted((sorted((HOST, STORAGE, numa)), [numa]) for numa in NUMA),
        ),
        Step(
            "claim_resources of a candidate",
            lambda: (
                scheduler.claim(INSTANCE, _on(scheduler.candidates(flavor(**NESTED))[0], NUMA[0])),
                scheduler.held(INSTANCE),
            ),
            (True, HELD),
        ),
        Step(
            "get_allocations_for_resource_provider",
            lambda: compute.does("get_allocations_for_resource_provider", NUMA[0]).allocations,
            {INSTANCE: {"resources": {"CUSTOM_FPGA": 1}}},
        ),
        Step(
            "get_usages_counts_for_limits",
            lambda: compute.does("get_usages_counts_for_limits", PROJECT),
            {"VCPU": 2, "MEMORY_MB": 512, "CUSTOM_FPGA": 1, "DISK_GB": 10},
        ),
        Step(
            "get_usages_counts_for_quota",
            lambda: compute.does("get_usages_counts_for_quota", PROJECT, user_id=USER),
            {whose: {"cores": 2, "ram": 512} for whose in ("project", "user")},
        ),
        Step(
            "a claim that does not fit is refused, and leaves nothing",
            lambda: (scheduler.claim(BIG, one_cpu(33)), scheduler.held(BIG)),
            (False, {}),
        ),
        Step(
            "a claim for a consumer that changed meanwhile is refused",
            lambda: (
                scheduler.refuses(scheduler.claim, INSTANCE, {**one_cpu(), "consumer_generation": 77}),
                {*scheduler.held(INSTANCE)},
            ),
            ("AllocationUpdateFailed", {*HELD}),
        ),
    )
    moves = (
        Step(
            "add_resources_to_instance_allocation, remove_resources_from_instance_allocation",
            lambda: (
                compute.does("add_resources_to_instance_allocation", INSTANCE, FPGAS_MORE),
                compute.held(INSTANCE).get(NUMA[1]),
                compute.does("remove_resources_from_instance_allocation", INSTANCE, FPGAS_MORE),
                compute.held(INSTANCE).get(NUMA[1]),
            )[1::2],
            ({"CUSTOM_FPGA": 2}, None),
        ),
        Step(
            "move_allocations to a migration, and a claim of the new host",
            lambda: (
                cloud.moved(INSTANCE, MIGRATION),
                scheduler.claim(INSTANCE, ON_OTHER),
                {*scheduler.held(INSTANCE)},
            ),
            (True, True, {OTHER}),
        ),
        Step(
            "move_allocations back: the move is reverted",
            lambda: cloud.moved(MIGRATION, INSTANCE),
            wanted=True,
        ),
        Step(
            "a second move_allocations finds it done",
            lambda: compute.does("move_allocations", MIGRATION, INSTANCE),
            wanted=True,
        ),
        Step(
            "claim_resources of another host doubles the allocations: an evacuation",
            lambda: (scheduler.claim(INSTANCE, ON_OTHER), {*scheduler.held(INSTANCE)}),
            (True, {*HELD, OTHER}),
        ),
        Step(
            "remove_provider_tree_from_instance_allocation",
            lambda: last(
                compute.does("remove_provider_tree_from_instance_allocation", INSTANCE, OTHER),
                {*compute.held(INSTANCE)},
            ),
            {*HELD},
        ),
        Step(
            "put_allocations with the generation that was read",
            cloud.written_twice,
            (True, "AllocationUpdateFailed"),
        ),
        Step(
            "a reshape moves inventory and its allocations into the tree",
            cloud.reshaped,
            (
                {INSTANCE},
                {HOST: {"MEMORY_MB": 512}, NUMA[0]: {"CUSTOM_FPGA": 1, "VCPU": 2}, STORAGE: {"DISK_GB": 10}},
                {HOST: {*MEMORY}, **{numa: {*IN_NUMA} for numa in NUMA}},
            ),
        ),
    )
    the_end = (
        Step(
            "inventory in use stays",
            lambda: last(
                compute.does("delete_resource_provider", compute_node(HOST, NAMES[HOST])),
                seen().exists(NUMA[0]),
            ),
            wanted=True,
        ),
        Step(
            "delete_allocation_for_instance",
            lambda: (
                compute.does("delete_allocation_for_instance", INSTANCE),
                compute.held(INSTANCE),
                compute.does("delete_allocation_for_instance", INSTANCE),
            ),
            (True, {}, False),
        ),
        Step(
            "delete_allocation_for_instance, by force",
            lambda: (
                scheduler.claim(BIG, one_cpu()),
                *(compute.does("delete_allocation_for_instance", BIG, force=True) for _ in range(2)),
            ),
            (True, True, False),
        ),
        Step(
            "delete_resource_provider, with all its children",
            lambda: [
                last(
                    compute.does("delete_resource_provider", compute_node(provider, name)),
                    compute.refuses(compute.does, "get_provider_by_name", name),
                )
                for provider, name in NAMES.items()
            ],
            ["ResourceProviderNotFound"] * 3,
        ),
    )
    return (*trees, *claims, *moves, *the_end)


def _told(requests: list[dict[str, Any]], summaries: dict[str, Any]) -> tuple[set[frozenset[str]], set[str]]:
    return {frozenset(each["allocations"]) for each in requests}, {*summaries}


def _on(requests: list[dict[str, Any]], provider: str) -> dict[str, Any]:
    return next(each for each in requests if provider in each["allocations"])


def main(file: str, title: str) -> int:
    config.parse_args(["nova", "--config-file", file], configure_db=False, init_rpc=False)
    objects.register_all()
    # The client warns of each refusal, and most of them are intended here; a step reports the others.
    logging.getLogger("nova").setLevel(logging.CRITICAL)
    return 0 if are_well(title, steps(Cloud())) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
