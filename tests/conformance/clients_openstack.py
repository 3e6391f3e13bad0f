"""The `openstack` command with the published osc-placement: each of its placement subcommands, one after another.

The steps use one cloud with two hosts, one of them with a network card as a child. Each step is a process, as a person
would start it. A check against the command's own list shows that no subcommand is missing.
"""

from collections.abc import Sequence
from typing import Any

from tests.conformance.clients_openstack_command import FIRST, SETTLED, Openstack
from tests.conformance.clients_steps import Steps, expect, expect_within

HOST = "c0000000-0000-4000-8000-000000000001"
OTHER = "c0000000-0000-4000-8000-000000000002"
CARD = "c0000000-0000-4000-8000-00000000000c"
RACK = "a0000000-0000-4000-8000-000000000001"
SERVER = "50000000-0000-4000-8000-000000000001"
MOVED = "50000000-0000-4000-8000-000000000002"
NOWHERE = "00000000-0000-4000-8000-00000000dead"

CAPACITY = {"allocation_ratio": 1.0, "min_unit": 1, "reserved": 0, "step_size": 1}


def openstack_works(openstack: Openstack, title: str) -> bool:
    steps = Steps(title)
    for chapter in (
        _classes_and_traits,
        _providers,
        _inventories,
        _qualities,
        _candidates,
        _allocations,
        _older_versions,
        _refusals,
        _the_end,
    ):
        chapter(openstack, steps)
    with steps.step("every subcommand was used"):
        expect(openstack.used, openstack.subcommands)
    return steps.are_well


def a_wrong_password_is_refused(openstack: Openstack, title: str) -> bool:
    """With a wrong password. The refusal must say so in words: the command looks for them in the answer."""
    steps = Steps(title)
    with steps.step("refused: a wrong password"):
        expect_within(openstack.refused("resource provider list"), "the password is wrong (HTTP 401)")
    return steps.are_well


def _classes_and_traits(openstack: Openstack, steps: Steps) -> None:
    with steps.step("resource class create"):
        openstack("resource class create", "CUSTOM_FPGA")
    with steps.step("resource class set"):
        openstack("resource class set", "CUSTOM_GOLD")
        # It exists already, which is no error.
        openstack("resource class set", "CUSTOM_GOLD")
    with steps.step("resource class show"):
        expect(openstack.told("resource class show", "CUSTOM_FPGA"), {"name": "CUSTOM_FPGA"})
    with steps.step("resource class delete"):
        openstack("resource class delete", "CUSTOM_GOLD")
    with steps.step("resource class list"):
        names = {each["name"] for each in openstack.told("resource class list")}
        expect({"VCPU", "MEMORY_MB", "CUSTOM_FPGA", "CUSTOM_GOLD"} - names, {"CUSTOM_GOLD"})
    with steps.step("trait create"):
        openstack("trait create", "CUSTOM_FAST")
        openstack("trait create", "CUSTOM_LOUD")
    with steps.step("trait show"):
        expect(openstack.told("trait show", "CUSTOM_FAST"), {"name": "CUSTOM_FAST"})
    with steps.step("trait delete"):
        openstack("trait delete", "CUSTOM_LOUD")
    with steps.step("trait list"):
        custom = openstack.told("trait list", "--name", "startswith:CUSTOM_")
        expect(custom, [{"name": "CUSTOM_FAST"}])
        named = openstack.told("trait list", "--name", "in:HW_CPU_X86_AVX,CUSTOM_FAST,HW_NO_SUCH")
        expect({each["name"] for each in named}, {"HW_CPU_X86_AVX", "CUSTOM_FAST"})


def _providers(openstack: Openstack, steps: Steps) -> None:
    with steps.step("resource provider create"):
        created = openstack.told("resource provider create", "host", "--uuid", HOST)
        expect(created, _provider(HOST, "host", 0))
    with steps.step("resource provider create, at version 1.0"):
        created = openstack.told("resource provider create", "another", "--uuid", OTHER, version=FIRST)
        expect(created, {"uuid": OTHER, "name": "another", "generation": 0})
    with steps.step("resource provider create, with a parent"):
        created = openstack.told(
            "resource provider create", "card", "--uuid", CARD, "--parent-provider", HOST
        )
        expect(created, _provider(CARD, "card", 0, root=HOST, parent=HOST))
    with steps.step("resource provider set"):
        expect(
            openstack.told("resource provider set", OTHER, "--name", "other"), _provider(OTHER, "other", 0)
        )
        moved = openstack.told("resource provider set", CARD, "--name", "card", "--parent-provider", OTHER)
        expect(moved, _provider(CARD, "card", 0, root=OTHER, parent=OTHER))
        openstack("resource provider set", CARD, "--name", "card", "--parent-provider", HOST)
    with steps.step("resource provider show"):
        expect(openstack.told("resource provider show", OTHER), _provider(OTHER, "other", 0))
    with steps.step("resource provider list"):
        expect(_ids(openstack.told("resource provider list")), {HOST, OTHER, CARD})
        expect(_ids(openstack.told("resource provider list", "--in-tree", HOST)), {HOST, CARD})
        expect(_ids(openstack.told("resource provider list", "--name", "other")), {OTHER})


def _inventories(openstack: Openstack, steps: Steps) -> None:
    with steps.step("resource provider inventory set"):
        rows = openstack.told(
            "resource provider inventory set",
            HOST,
            *("--resource", "VCPU=8", "--resource", "VCPU:allocation_ratio=2.0"),
            *("--resource", "MEMORY_MB=4096", "--resource", "MEMORY_MB:reserved=512"),
        )
        vcpu = {**CAPACITY, "allocation_ratio": 2.0, "total": 8}
        memory = {**CAPACITY, "reserved": 512, "total": 4096}
        expect(_of_class(rows, "VCPU"), {**_of_class(rows, "VCPU"), **vcpu})
        expect(_of_class(rows, "MEMORY_MB"), {**_of_class(rows, "MEMORY_MB"), **memory})
    with steps.step("resource provider inventory class set"):
        openstack("resource provider inventory set", CARD, "--resource", "CUSTOM_FPGA=3")
        told = openstack.told("resource provider inventory class set", CARD, "CUSTOM_FPGA", "--total", "4")
        expect(told, {**told, **CAPACITY, "total": 4})
    with steps.step("resource provider inventory set --amend"):
        openstack("resource provider inventory set", HOST, "--amend", "--resource", "DISK_GB=100")
    with steps.step("resource provider inventory show"):
        told = openstack.told("resource provider inventory show", HOST, "VCPU")
        expect((told["total"], told["allocation_ratio"], told["used"]), (8, 2.0, 0))
    with steps.step("resource provider inventory delete"):
        openstack("resource provider inventory delete", HOST, "--resource-class", "DISK_GB")
    with steps.step("resource provider inventory list"):
        rows = openstack.told("resource provider inventory list", HOST)
        expect(
            {row["resource_class"]: (row["total"], row["reserved"], row["used"]) for row in rows},
            {"VCPU": (8, 0, 0), "MEMORY_MB": (4096, 512, 0)},
        )
    with steps.step("resource provider inventory delete, all of them"):
        openstack("resource provider inventory set", OTHER, "--resource", "VCPU=1")
        openstack("resource provider inventory delete", OTHER)
        expect(openstack.told("resource provider inventory list", OTHER), [])


def _qualities(openstack: Openstack, steps: Steps) -> None:
    with steps.step("resource provider trait set"):
        told = openstack.told(
            "resource provider trait set", HOST, "--trait", "CUSTOM_FAST", "--trait", "HW_CPU_X86_AVX"
        )
        expect({each["name"] for each in told}, {"CUSTOM_FAST", "HW_CPU_X86_AVX"})
    with steps.step("resource provider trait list"):
        openstack("resource provider trait set", CARD, "--trait", "HW_NIC_SRIOV")
        expect(openstack.told("resource provider trait list", CARD), [{"name": "HW_NIC_SRIOV"}])
    with steps.step("resource provider trait delete"):
        openstack("resource provider trait delete", CARD)
        expect(openstack.told("resource provider trait list", CARD), [])
    with steps.step("trait list --associated"):
        associated = openstack.told("trait list", "--associated")
        expect({each["name"] for each in associated}, {"CUSTOM_FAST", "HW_CPU_X86_AVX"})
    with steps.step("resource provider aggregate set"):
        generation = openstack.told("resource provider show", HOST)["generation"]
        openstack(
            "resource provider aggregate set", HOST, "--aggregate", RACK, "--generation", str(generation)
        )
        expect(openstack.told("resource provider show", HOST)["generation"], generation + 1)
    with steps.step("resource provider aggregate set, at version 1.1"):
        openstack("resource provider aggregate set", OTHER, "--aggregate", RACK, version="1.1")
    with steps.step("resource provider aggregate list"):
        expect(openstack.told("resource provider aggregate list", HOST), [{"uuid": RACK}])
    with steps.step("resource provider inventory set --aggregate"):
        arguments = (RACK, "--aggregate", "--amend", "--resource", "VCPU=8")
        dry = openstack.told("resource provider inventory set", *arguments, "--dry-run")
        expect({row["resource_provider"] for row in dry}, {HOST, OTHER})
        expect(openstack.told("resource provider inventory list", OTHER), [])
        openstack("resource provider inventory set", *arguments)
        rows = openstack.told("resource provider inventory list", OTHER)
        expect([(row["resource_class"], row["total"]) for row in rows], [("VCPU", 8)])
    with steps.step("resource provider list, by their resources"):
        expect(_ids(openstack.told("resource provider list", "--member-of", RACK)), {HOST, OTHER})
        expect(_ids(openstack.told("resource provider list", "--resource", "VCPU=9")), {HOST})
        expect(_ids(openstack.told("resource provider list", "--resource", "VCPU=17")), set())
        found = openstack.told("resource provider list", "--resource", "VCPU=8", "--required", "CUSTOM_FAST")
        expect(_ids(found), {HOST})
        found = openstack.told("resource provider list", "--member-of", RACK, "--forbidden", "CUSTOM_FAST")
        expect(_ids(found), {OTHER})


def _candidates(openstack: Openstack, steps: Steps) -> None:
    with steps.step("allocation candidate list"):
        rows = openstack.told("allocation candidate list", "--resource", "VCPU=2")
        expect({row["resource provider"] for row in rows}, {HOST, OTHER})
        expect({row["allocation"] for row in rows}, {"VCPU=2"})
    with steps.step("allocation candidate list, with any of some traits, and some forbidden"):
        rows = openstack.told(
            "allocation candidate list",
            *("--resource", "VCPU=2", "--required", "CUSTOM_FAST,HW_NIC_SRIOV", "--limit", "1"),
        )
        (row,) = rows
        expect(row["resource provider"], HOST)
        expect(set(row["traits"].split(",")), {"CUSTOM_FAST", "HW_CPU_X86_AVX"})
        expect(set(row["inventory used/capacity"].split(",")), {"VCPU=0/16", "MEMORY_MB=0/3584"})
        rows = openstack.told(
            "allocation candidate list", "--resource", "VCPU=2", "--forbidden", "CUSTOM_FAST"
        )
        expect([row["resource provider"] for row in rows], [OTHER])
    with steps.step("allocation candidate list, in groups"):
        rows = openstack.told(
            "allocation candidate list",
            *("--resource", "MEMORY_MB=1024", "--group", "1", "--resource", "VCPU=1"),
            *("--group", "2", "--resource", "CUSTOM_FPGA=1", "--group-policy", "isolate"),
        )
        expect({row["#"] for row in rows}, {1})
        expect({row["resource provider"] for row in rows}, {HOST, CARD})


def _allocations(openstack: Openstack, steps: Steps) -> None:
    who = ("--project-id", "a-project", "--user-id", "a-user")
    with steps.step("resource provider allocation set"):
        rows = openstack.told(
            "resource provider allocation set",
            SERVER,
            *("--allocation", f"rp={HOST},VCPU=4", "--allocation", f"rp={HOST},MEMORY_MB=512"),
            *("--allocation", f"rp={CARD},CUSTOM_FPGA=1", *who, "--consumer-type", "INSTANCE"),
        )
        expect(
            {row["resource_provider"]: row["resources"] for row in rows},
            {HOST: {"VCPU": 4, "MEMORY_MB": 512}, CARD: {"CUSTOM_FPGA": 1}},
        )
    with steps.step("resource provider allocation show"):
        rows = openstack.told("resource provider allocation show", SERVER)
        expect(
            {(row["project_id"], row["user_id"], row["consumer_type"]) for row in rows},
            {("a-project", "a-user", "INSTANCE")},
        )
    with steps.step("resource provider usage show"):
        rows = openstack.told("resource provider usage show", HOST)
        expect({row["resource_class"]: row["usage"] for row in rows}, {"VCPU": 4, "MEMORY_MB": 512})
    with steps.step("resource usage show"):
        rows = openstack.told("resource usage show", "a-project", "--user-id", "a-user", version="1.9")
        expect(
            {row["resource_class"]: row["usage"] for row in rows},
            {"VCPU": 4, "MEMORY_MB": 512, "CUSTOM_FPGA": 1},
        )
        expect(openstack.told("resource usage show", "a-project", "--user-id", "nobody", version="1.9"), [])
    with steps.step("resource provider show --allocations"):
        told = openstack.told("resource provider show", HOST, "--allocations")
        held = {"resources": {"VCPU": 4, "MEMORY_MB": 512}, "consumer_generation": 1}
        expect(told["allocations"], {SERVER: held})
    with steps.step("resource provider allocation set, once more"):
        rows = openstack.told(
            "resource provider allocation set",
            SERVER,
            *("--allocation", f"rp={HOST},VCPU=2", "--allocation", f"rp={OTHER},VCPU=3"),
            *("--allocation", f"rp={HOST},MEMORY_MB=512", *who, "--consumer-type", "INSTANCE"),
        )
        expect({row["resource_provider"] for row in rows}, {HOST, OTHER})
    with steps.step("resource provider allocation unset, one class and one provider"):
        rows = openstack.told("resource provider allocation unset", SERVER, "--resource-class", "MEMORY_MB")
        expect(
            {row["resource_provider"]: row["resources"] for row in rows},
            {HOST: {"VCPU": 2}, OTHER: {"VCPU": 3}},
        )
        rows = openstack.told("resource provider allocation unset", SERVER, "--provider", OTHER)
        expect({row["resource_provider"]: row["resources"] for row in rows}, {HOST: {"VCPU": 2}})
    with steps.step("resource provider allocation delete"):
        openstack("resource provider allocation delete", SERVER)
        expect(openstack.told("resource provider allocation show", SERVER), [])


def _older_versions(openstack: Openstack, steps: Steps) -> None:
    with steps.step("resource provider list, at a version settled with the server"):
        expect(_ids(openstack.told("resource provider list", version=SETTLED)), {HOST, OTHER, CARD})
    with steps.step("resource provider allocation set, at version 1.0"):
        openstack(
            "resource provider allocation set", MOVED, "--allocation", f"rp={OTHER},VCPU=8", version=FIRST
        )
        rows = openstack.told("resource provider allocation show", MOVED, version=FIRST)
        expect([(row["resource_provider"], row["resources"]) for row in rows], [(OTHER, {"VCPU": 8})])
    with steps.step("resource provider allocation unset, at version 1.12"):
        openstack("resource provider allocation unset", MOVED, version="1.12")
        expect(openstack.told("resource provider allocation show", MOVED, version=FIRST), [])
    with steps.step("allocation candidate list, at version 1.10"):
        rows = openstack.told("allocation candidate list", "--resource", "VCPU=16", version="1.10")
        expect([row["resource provider"] for row in rows], [HOST])


def _refusals(openstack: Openstack, steps: Steps) -> None:
    claim = ("--project-id", "a-project", "--user-id", "a-user", "--consumer-type", "INSTANCE")
    with steps.step("refused: more than the capacity"):
        told = openstack.refused(
            "resource provider allocation set", SERVER, "--allocation", f"rp={OTHER},VCPU=9", *claim
        )
        expect_within(told, "409")
    with steps.step("refused: a stale generation"):
        told = openstack.refused(
            "resource provider aggregate set", HOST, "--aggregate", RACK, "--generation", "0"
        )
        expect_within(told, "409")
    with steps.step("refused: a provider with children"):
        expect_within(openstack.refused("resource provider delete", HOST), "409")
    with steps.step("refused: a name that is taken"):
        expect_within(openstack.refused("resource provider create", "host"), "409")
    with steps.step("refused: a standard class"):
        expect_within(openstack.refused("resource class delete", "VCPU"), "400")
    with steps.step("refused: an unknown trait"):
        expect_within(openstack.refused("trait show", "CUSTOM_UNHEARD_OF"), "404")
    with steps.step("refused: an unknown provider"):
        expect_within(openstack.refused("resource provider show", NOWHERE), "404")


def _the_end(openstack: Openstack, steps: Steps) -> None:
    with steps.step("resource provider delete"):
        for provider in (CARD, HOST, OTHER):
            openstack("resource provider delete", provider)
        expect(openstack.told("resource provider list"), [])
    with steps.step("trait delete and resource class delete, once nobody has them"):
        openstack("trait delete", "CUSTOM_FAST")
        openstack("resource class delete", "CUSTOM_FPGA")


def _provider(
    provider: str, name: str, generation: int, *, root: str | None = None, parent: str | None = None
) -> dict[str, Any]:
    return {
        "uuid": provider,
        "name": name,
        "generation": generation,
        "root_provider_uuid": root or provider,
        "parent_provider_uuid": parent,
    }


def _ids(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["uuid"] for row in rows}


def _of_class(rows: Sequence[dict[str, Any]], resource: str) -> dict[str, Any]:
    (row,) = (row for row in rows if row["resource_class"] == resource)
    return row
