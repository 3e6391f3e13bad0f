"""The flavors that a request accepts: which there are, in which order, and which field of a request is wrong."""

from collections.abc import Mapping
from typing import Any

import pytest

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, Image, RequestId
from engine.requests import Alternative, RequestProblem, read_alternatives, read_request
from scheduler_worker.core.instances.history import (
    encoded,
    flavor_of,
)
from tests.contracts.placement_orders import VOCABULARY, an_id

GOLD, SILVER = "CUSTOM_GOLD", "CUSTOM_SILVER"
VM = Flavor(name="vm", vcpus=2, ram_mb=1024, root_gb=5)


def a_flavor(name: str = "", **extra_specs: str) -> Flavor:
    return Flavor(
        name=name, extra_specs={key.replace("__", ":"): value for key, value in extra_specs.items()}
    )


ON_GOLD = a_flavor("gold", resources__CUSTOM_GOLD="1")
ON_SILVER = a_flavor("silver", resources__CUSTOM_SILVER="1")


def a_build(flavor: Flavor, *alternatives: Flavor, **fields: Any) -> BuildInstance:
    return BuildInstance(
        request_id=RequestId(an_id("request")), flavor=flavor, alternatives=alternatives, **fields
    )


def read(build: BuildInstance) -> tuple[Alternative, ...] | RequestProblem:
    return read_alternatives(build, lambda each: read_request(each, VOCABULARY))


def needs(found: tuple[Alternative, ...]) -> list[tuple[str, Mapping[str, int], bool]]:
    return [(each.name, dict(each.spec.amounts), each.spec.is_for_nodes) for each in found]


def with_preferred(**preferred: str) -> Flavor:
    extra_specs = {f"resources:{name}": value for name, value in preferred.items()}
    return Flavor(
        name="any", vcpus=2, ram_mb=1024, extra_specs={**extra_specs, "trait:CUSTOM_FAST": "required"}
    )


def facts_of(found: tuple[Alternative, ...]) -> dict[str, object]:
    return {
        "needs": needs(found),
        "names": [each.name for each in found],
        "zones": {(each.spec.availability_zone, each.spec.count) for each in found},
        "images": [(each.spec.is_for_nodes, each.spec.image) for each in found],
        "required": [each.spec.required for each in found],
        "preferred": [each.spec.preferred_classes for each in found],
        "flavors": [each.flavor for each in found],
    }


FOR_GOLD = a_build(with_preferred(CUSTOM_GOLD="preferred:100"))
GOLD_NODE = Flavor(name="any", extra_specs={"trait:CUSTOM_FAST": "required", f"resources:{GOLD}": "1"})
ACCEPTED: dict[str, tuple[BuildInstance, dict[str, object]]] = {
    "each flavor has its own amounts and all have the rest of the request": (
        a_build(ON_GOLD, ON_SILVER, VM, availability_zone="north", count=3),
        {
            "needs": [
                ("gold", {GOLD: 1}, False),
                ("silver", {SILVER: 1}, False),
                ("vm", {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 5}, False),
            ],
            "zones": {("north", 3)},
        },
    ),
    "an image is for the node or for the hypervisor as each flavor says": (
        a_build(ON_GOLD, VM, image=Image(source="debian")),
        {"images": [(True, ""), (False, "debian")]},
    ),
    "a custom class that is preferred is first a node of that class": (
        FOR_GOLD,
        {
            "needs": [
                (f"a node of {GOLD}", {GOLD: 1}, True),
                ("any", {"VCPU": 2, "MEMORY_MB": 1024}, False),
            ],
            "required": [("CUSTOM_FAST",), ("CUSTOM_FAST",)],
            "preferred": [(), ((GOLD, 100.0),)],
            "flavors": [GOLD_NODE, FOR_GOLD.flavor],
        },
    ),
    "of several preferred classes the highest weight comes first": (
        a_build(with_preferred(CUSTOM_SILVER="preferred", CUSTOM_GOLD="preferred:2"), ON_SILVER),
        {"names": [f"a node of {GOLD}", f"a node of {SILVER}", "any", "silver"]},
    ),
    "a class that is avoided adds no flavor": (
        a_build(with_preferred(CUSTOM_GOLD="preferred:-1")),
        {"names": ["any"]},
    ),
    "a class of no nodes adds no flavor": (
        a_build(with_preferred(VGPU="preferred:5")),
        {"names": ["any"]},
    ),
    "there may be eight": (a_build(*[VM] * 8), {"names": ["vm"] * 8}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_which_flavors_a_request_accepts(case: str) -> None:
    build, says = ACCEPTED[case]
    found = read(build)
    assert not isinstance(found, RequestProblem), found
    facts = facts_of(found)

    assert {name: facts[name] for name in says} == says


def test_of_the_flavors_that_a_row_keeps_the_one_that_was_chosen_is_told() -> None:
    found = read(FOR_GOLD)
    assert not isinstance(found, RequestProblem)
    on_node, itself = found

    assert flavor_of(encoded(on_node.spec, a_build(itself.flavor), found)) == on_node.flavor


BAD = Flavor(vcpus=-1)


@pytest.mark.parametrize(
    ("build", "field", "value", "why"),
    [
        (a_build(BAD, VM), "flavor.vcpus", "-1", ""),
        (a_build(VM, BAD), "alternatives[0].vcpus", "-1", ""),
        (a_build(VM, ON_GOLD, BAD), "alternatives[1].vcpus", "-1", ""),
        # It asks for nothing.
        (a_build(VM, Flavor(name="none")), "alternatives[0]", "none", ""),
        (
            a_build(ON_GOLD, VM, ports=("port-1",)),
            "ports",
            "port-1",
            "with alternatives[0]: only bare-metal nodes read it",
        ),
        (a_build(*[VM] * 9), "alternatives", "9", ""),
        # A node of a preferred class is one more.
        (a_build(with_preferred(CUSTOM_GOLD="preferred"), *[VM] * 7), "alternatives", "9", ""),
    ],
)
def test_the_field_of_the_wrong_flavor_is_named(
    build: BuildInstance, field: str, value: str, why: str
) -> None:
    told = read(build)

    assert isinstance(told, RequestProblem)
    assert (told.field, str(told.value)) == (field, value)
    assert told.reason.startswith(why)
