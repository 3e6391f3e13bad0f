"""Nova's own published SchedulerReportClient, used as Nova's computes, conductors and schedulers use it.

The Python of its own environment runs it: `python -m tests.conformance.clients_nova CONFIG_FILE TITLE`, with Nova's own
configuration, which says where placement is and how to authenticate.
"""

import logging
import sys
from typing import Any

from nova import config, exception, objects

from tests.conformance.clients_nova_service import (
    PROJECT,
    USER,
    Service,
    compute_node,
    flavor,
    inventory,
    nested_flavor,
)
from tests.conformance.clients_steps import Steps, expect

HOST = "d0000000-0000-4000-8000-000000000001"
OTHER = "d0000000-0000-4000-8000-000000000002"
NUMA = ("d0000000-0000-4000-8000-0000000000a0", "d0000000-0000-4000-8000-0000000000a1")
STORAGE = "d0000000-0000-4000-8000-00000000005a"
RACK = "b0000000-0000-4000-8000-000000000001"
POOL = "b0000000-0000-4000-8000-000000000002"
INSTANCE = "60000000-0000-4000-8000-000000000001"
MIGRATION = "60000000-0000-4000-8000-000000000002"
BIG = "60000000-0000-4000-8000-000000000003"


HOST_INVENTORY = {"VCPU": inventory(16, ratio=2.0), "MEMORY_MB": inventory(8192, reserved=512)}


def nova_works(title: str) -> bool:
    steps = Steps(title)
    compute, scheduler = Service(), Service()
    for chapter in (_trees, _conflicts, _aggregates, _claims, _moves, _reshape, _the_end):
        chapter(compute, scheduler, steps)
    return steps.are_well


def _trees(compute: Service, scheduler: Service, steps: Steps) -> None:
    with steps.step("get_provider_tree_and_ensure_root creates a provider"):
        tree = compute.tree(HOST, "nova-host")
        expect(tree.get_provider_uuids(), [HOST])
    with steps.step("update_from_provider_tree creates its children, with inventories and traits"):
        tree = compute.tree(HOST, "nova-host")
        for number, numa in enumerate(NUMA):
            tree.new_child(f"nova-host_numa{number}", HOST, uuid=numa)
            tree.update_inventory(numa, {"CUSTOM_FPGA": inventory(2)})
            tree.update_traits(numa, ["CUSTOM_NUMA_NODE", "HW_NUMA_ROOT"])
        tree.update_inventory(HOST, HOST_INVENTORY)
        tree.update_traits(HOST, ["HW_CPU_X86_AVX", "COMPUTE_NODE", "CUSTOM_NOVA"])
        compute.flush(tree)
    with steps.step("another service sees the same tree"):
        tree = scheduler.tree(HOST, "nova-host")
        expect(tree.get_provider_uuids()[0], HOST)
        expect(set(tree.get_provider_uuids_in_tree(NUMA[1])), {HOST, *NUMA})
        expect(tree.data(HOST).inventory, HOST_INVENTORY)
        expect(tree.data(HOST).traits, {"HW_CPU_X86_AVX", "COMPUTE_NODE", "CUSTOM_NOVA"})
        expect(tree.data(NUMA[0]).parent_uuid, HOST)
        expect(tree.data(NUMA[0]).inventory, {"CUSTOM_FPGA": inventory(2)})
    with steps.step("an unchanged tree is flushed without a request"):
        before = compute.client._provider_tree.data(HOST).generation  # noqa: SLF001 - it shows it in no other way
        compute.flush(compute.tree(HOST, "nova-host"))
        expect(compute.tree(HOST, "nova-host").data(HOST).generation, before)
    with steps.step("set_inventory_for_provider, with a class that is new"):
        compute.tree(OTHER, "nova-other")
        compute.client.set_inventory_for_provider(
            compute.admin, OTHER, {**HOST_INVENTORY, "CUSTOM_LICENCE": inventory(1)}
        )
        tree = scheduler.tree(OTHER, "nova-other")
        expect(tree.data(OTHER).inventory, {**HOST_INVENTORY, "CUSTOM_LICENCE": inventory(1)})
        compute.client.set_inventory_for_provider(compute.admin, OTHER, HOST_INVENTORY)
    with steps.step("get_provider_by_name, get_resource_provider_name"):
        expect(compute.client.get_provider_by_name(compute.admin, "nova-other")["uuid"], OTHER)
        expect(compute.client.get_resource_provider_name(compute.admin, OTHER), "nova-other")
    with steps.step("a sharing storage pool is part of its hosts' cached trees"):
        tree = compute.tree(STORAGE, "nova-storage")
        tree.update_inventory(STORAGE, {"DISK_GB": inventory(1000)})
        tree.update_traits(STORAGE, ["MISC_SHARES_VIA_AGGREGATE"])
        tree.update_aggregates(STORAGE, [POOL])
        compute.flush(tree)
        tree = compute.tree(HOST, "nova-host")
        tree.update_aggregates(HOST, [POOL])
        compute.flush(tree)
        expect(Service().tree(HOST, "nova-host").exists(STORAGE), wanted=True)


def _conflicts(compute: Service, scheduler: Service, steps: Steps) -> None:
    with steps.step("a write from an outdated cache is a conflict"):
        old = scheduler.tree(HOST, "nova-host")
        tree = compute.tree(HOST, "nova-host")
        tree.update_inventory(HOST, {**HOST_INVENTORY, "VCPU": inventory(32)})
        compute.flush(tree)
        old.update_inventory(HOST, {**HOST_INVENTORY, "VCPU": inventory(64)})
        try:
            scheduler.flush(old)
        except exception.ResourceProviderUpdateConflict:
            pass
        else:
            raise AssertionError("was taken")
        expect(Service().tree(HOST, "nova-host").data(HOST).inventory["VCPU"]["total"], 32)
    with steps.step("and succeeds with a fresh cache"):
        tree = scheduler.tree(HOST, "nova-host")
        tree.update_inventory(HOST, HOST_INVENTORY)
        scheduler.flush(tree)
        expect(Service().tree(HOST, "nova-host").data(HOST).inventory, HOST_INVENTORY)


def _aggregates(compute: Service, scheduler: Service, steps: Steps) -> None:
    with steps.step("aggregate_add_host, aggregate_remove_host"):
        compute.client.aggregate_add_host(compute.admin, RACK, host_name="nova-other")
        expect(Service().tree(OTHER, "nova-other").in_aggregates(OTHER, [RACK]), wanted=True)
        scheduler.client.aggregate_remove_host(scheduler.admin, RACK, "nova-other")
        expect(Service().tree(OTHER, "nova-other").in_aggregates(OTHER, [RACK]), wanted=False)


def _claims(compute: Service, scheduler: Service, steps: Steps) -> None:
    with steps.step("get_allocation_candidates for a flavor"):
        requests, summaries = scheduler.candidates(flavor())
        expect({provider for each in requests for provider in each["allocations"]}, {HOST, OTHER})
        # The answer has whole trees, also where the question names only their root.
        expect(set(summaries), {HOST, *NUMA, OTHER})
        expect(summaries[HOST]["resources"]["VCPU"], {"capacity": 32, "used": 0})
    with steps.step("get_allocation_candidates for one with groups, a subtree, a shared disk, and traits"):
        requests, _ = scheduler.candidates(nested_flavor())
        expect(len(requests), 2)
        expect(
            {frozenset(each["allocations"]) for each in requests},
            {frozenset({HOST, STORAGE, numa}) for numa in NUMA},
        )
        expect(
            {provider for each in requests for provider in each["mappings"]["_fpga"]},
            set(NUMA),
        )
    with steps.step("claim_resources of a candidate"):
        request = _on(scheduler.candidates(nested_flavor())[0], NUMA[0])
        expect(scheduler.claim(INSTANCE, request), wanted=True)
        expect(
            scheduler.held(INSTANCE),
            {HOST: {"VCPU": 2, "MEMORY_MB": 512}, NUMA[0]: {"CUSTOM_FPGA": 1}, STORAGE: {"DISK_GB": 10}},
        )
    with steps.step("get_allocations_for_resource_provider"):
        told = compute.client.get_allocations_for_resource_provider(compute.admin, NUMA[0])
        expect(told.allocations, {INSTANCE: {"resources": {"CUSTOM_FPGA": 1}}})
    with steps.step("get_usages_counts_for_limits, get_usages_counts_for_quota"):
        counted = compute.client.get_usages_counts_for_limits(compute.admin, PROJECT)
        expect(counted, {"VCPU": 2, "MEMORY_MB": 512, "CUSTOM_FPGA": 1, "DISK_GB": 10})
        counted = compute.client.get_usages_counts_for_quota(compute.admin, PROJECT, user_id=USER)
        expect(counted, {"project": {"cores": 2, "ram": 512}, "user": {"cores": 2, "ram": 512}})
    with steps.step("a claim that does not fit is refused, and leaves nothing"):
        expect(scheduler.claim(BIG, {"allocations": {OTHER: {"resources": {"VCPU": 33}}}}), wanted=False)
        expect(scheduler.held(BIG), {})
    with steps.step("a claim for a consumer that changed meanwhile is refused"):
        stale = {"allocations": {OTHER: {"resources": {"VCPU": 1}}}, "consumer_generation": 77}
        try:
            scheduler.claim(INSTANCE, stale)
        except exception.AllocationUpdateFailed:
            pass
        else:
            raise AssertionError("was not told")
        expect(set(scheduler.held(INSTANCE)), {HOST, NUMA[0], STORAGE})


def _moves(compute: Service, scheduler: Service, steps: Steps) -> None:
    on_other = {"allocations": {OTHER: {"resources": {"VCPU": 2, "MEMORY_MB": 512}}}}
    with steps.step("add_resources_to_instance_allocation, remove_resources_from_instance_allocation"):
        more = {NUMA[1]: {"resources": {"CUSTOM_FPGA": 2}}}
        compute.client.add_resources_to_instance_allocation(compute.admin, INSTANCE, more)
        expect(compute.held(INSTANCE)[NUMA[1]], {"CUSTOM_FPGA": 2})
        compute.client.remove_resources_from_instance_allocation(compute.admin, INSTANCE, more)
        expect(NUMA[1] in compute.held(INSTANCE), wanted=False)
    with steps.step("move_allocations to a migration, and a claim of the new host"):
        before = compute.held(INSTANCE)
        expect(compute.client.move_allocations(compute.admin, INSTANCE, MIGRATION), wanted=True)
        expect((compute.held(INSTANCE), compute.held(MIGRATION)), ({}, before))
        expect(scheduler.claim(INSTANCE, on_other), wanted=True)
        expect(set(scheduler.held(INSTANCE)), {OTHER})
    with steps.step("move_allocations back: the move is reverted"):
        before = compute.held(MIGRATION)
        expect(compute.client.move_allocations(compute.admin, MIGRATION, INSTANCE), wanted=True)
        expect((compute.held(INSTANCE), compute.held(MIGRATION)), (before, {}))
    with steps.step("a second move_allocations finds it done"):
        expect(compute.client.move_allocations(compute.admin, MIGRATION, INSTANCE), wanted=True)
    with steps.step("claim_resources of another host doubles the allocations: an evacuation"):
        expect(scheduler.claim(INSTANCE, on_other), wanted=True)
        expect(set(scheduler.held(INSTANCE)), {HOST, NUMA[0], STORAGE, OTHER})
    with steps.step("remove_provider_tree_from_instance_allocation"):
        compute.client.remove_provider_tree_from_instance_allocation(compute.admin, INSTANCE, OTHER)
        expect(set(compute.held(INSTANCE)), {HOST, NUMA[0], STORAGE})
    with steps.step("put_allocations with the generation that was read"):
        body = compute.client.get_allocs_for_consumer(compute.admin, INSTANCE)
        expect(compute.client.put_allocations(compute.admin, INSTANCE, body), wanted=True)
        try:
            compute.client.put_allocations(compute.admin, INSTANCE, body)
        except exception.AllocationUpdateFailed:
            pass
        else:
            raise AssertionError("the same generation was taken twice")


def _reshape(_: Service, __: Service, steps: Steps) -> None:
    # A compute reshapes after an upgrade, so it has just been restarted.
    compute = Service()
    with steps.step("a reshape moves inventory and its allocations into the tree"):
        tree = compute.tree(HOST, "nova-host")
        held = compute.client.get_allocations_for_provider_tree(compute.admin, "nova-host")
        expect(set(held), {INSTANCE})
        tree.update_inventory(HOST, {"MEMORY_MB": HOST_INVENTORY["MEMORY_MB"]})
        for numa in NUMA:
            tree.update_inventory(numa, {"VCPU": inventory(8, ratio=2.0), "CUSTOM_FPGA": inventory(2)})
        claimed = held[INSTANCE]["allocations"]
        claimed[NUMA[0]]["resources"]["VCPU"] = claimed[HOST]["resources"].pop("VCPU")
        compute.flush(tree, allocations=held)
        expect(
            compute.held(INSTANCE),
            {HOST: {"MEMORY_MB": 512}, NUMA[0]: {"CUSTOM_FPGA": 1, "VCPU": 2}, STORAGE: {"DISK_GB": 10}},
        )
        seen = Service().tree(HOST, "nova-host")
        expect(set(seen.data(HOST).inventory), {"MEMORY_MB"})
        expect(set(seen.data(NUMA[1]).inventory), {"VCPU", "CUSTOM_FPGA"})


def _the_end(compute: Service, scheduler: Service, steps: Steps) -> None:
    with steps.step("inventory in use stays"):
        compute.client.delete_resource_provider(compute.admin, compute_node(HOST, "nova-host"))
        expect(Service().tree(HOST, "nova-host").exists(NUMA[0]), wanted=True)
    with steps.step("delete_allocation_for_instance"):
        expect(compute.client.delete_allocation_for_instance(compute.admin, INSTANCE), wanted=True)
        expect(compute.held(INSTANCE), {})
        expect(compute.client.delete_allocation_for_instance(compute.admin, INSTANCE), wanted=False)
    with steps.step("delete_allocation_for_instance, by force"):
        expect(scheduler.claim(BIG, {"allocations": {OTHER: {"resources": {"VCPU": 1}}}}), wanted=True)
        expect(compute.client.delete_allocation_for_instance(compute.admin, BIG, force=True), wanted=True)
        expect(compute.client.delete_allocation_for_instance(compute.admin, BIG, force=True), wanted=False)
    with steps.step("delete_resource_provider, with all its children"):
        for provider, name in ((HOST, "nova-host"), (OTHER, "nova-other"), (STORAGE, "nova-storage")):
            compute.client.delete_resource_provider(compute.admin, compute_node(provider, name))
            try:
                compute.client.get_provider_by_name(compute.admin, name)
            except exception.ResourceProviderNotFound:
                continue
            raise AssertionError(f"{name} is still there")


def _on(requests: list[dict[str, Any]], provider: str) -> dict[str, Any]:
    return next(each for each in requests if provider in each["allocations"])


def main(file: str, title: str) -> int:
    config.parse_args(["nova", "--config-file", file], configure_db=False, init_rpc=False)
    objects.register_all()
    # The client warns of each refusal, and most of them are intended here; a step reports the others.
    logging.getLogger("nova").setLevel(logging.CRITICAL)
    return 0 if nova_works(title) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
