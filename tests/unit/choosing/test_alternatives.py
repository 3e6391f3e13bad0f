"""The flavors that a request accepts: which there are, in which order, and which field of a request is wrong."""

from collections.abc import Callable, Mapping
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


def accepted(build: BuildInstance) -> tuple[Alternative, ...]:
    found = read(build)
    assert not isinstance(found, RequestProblem), found
    return found


def rejected(build: BuildInstance) -> RequestProblem:
    found = read(build)
    assert isinstance(found, RequestProblem), found
    return found


def needs(found: tuple[Alternative, ...]) -> list[tuple[str, Mapping[str, int], bool]]:
    return [(each.name, dict(each.spec.amounts), each.spec.is_for_nodes) for each in found]


def with_preferred(**preferred: str) -> Flavor:
    extra_specs = {f"resources:{name}": value for name, value in preferred.items()}
    return Flavor(
        name="any", vcpus=2, ram_mb=1024, extra_specs={**extra_specs, "trait:CUSTOM_FAST": "required"}
    )


def test_each_flavor_has_its_own_amounts_and_all_have_the_rest_of_the_request() -> None:
    found = accepted(a_build(ON_GOLD, ON_SILVER, VM, availability_zone="north", count=3))

    assert needs(found) == [
        ("gold", {GOLD: 1}, False),
        ("silver", {SILVER: 1}, False),
        ("vm", {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 5}, False),
    ]
    assert {(each.spec.availability_zone, each.spec.count) for each in found} == {("north", 3)}


def test_an_image_is_for_the_node_or_for_the_hypervisor_as_each_flavor_says() -> None:
    on_node, on_host = accepted(a_build(ON_GOLD, VM, image=Image(source="debian")))

    assert (on_node.spec.is_for_nodes, on_node.spec.image) == (True, "")
    assert (on_host.spec.is_for_nodes, on_host.spec.image) == (False, "debian")


def test_a_custom_class_that_is_preferred_is_first_a_node_of_that_class() -> None:
    found = accepted(a_build(with_preferred(CUSTOM_GOLD="preferred:100")))

    assert needs(found) == [
        (f"a node of {GOLD}", {GOLD: 1}, True),
        ("any", {"VCPU": 2, "MEMORY_MB": 1024}, False),
    ]
    on_node, itself = found
    assert on_node.spec.required == itself.spec.required == ("CUSTOM_FAST",)
    assert flavor_of(encoded(on_node.spec, a_build(itself.flavor), found)) == on_node.flavor
    assert (on_node.spec.preferred_classes, itself.spec.preferred_classes) == ((), ((GOLD, 100.0),))
    assert on_node.flavor == Flavor(
        name="any", extra_specs={"trait:CUSTOM_FAST": "required", f"resources:{GOLD}": "1"}
    )


def test_of_several_preferred_classes_the_highest_weight_comes_first() -> None:
    found = accepted(a_build(with_preferred(CUSTOM_SILVER="preferred", CUSTOM_GOLD="preferred:2"), ON_SILVER))

    assert [each.name for each in found] == [f"a node of {GOLD}", f"a node of {SILVER}", "any", "silver"]


@pytest.mark.parametrize("preferred", [{"CUSTOM_GOLD": "preferred:-1"}, {"VGPU": "preferred:5"}])
def test_a_class_that_is_avoided_or_no_class_of_nodes_adds_no_flavor(preferred: dict[str, str]) -> None:
    assert [each.name for each in accepted(a_build(with_preferred(**preferred)))] == ["any"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda bad: a_build(bad, VM), "flavor.vcpus"),
        (lambda bad: a_build(VM, bad), "alternatives[0].vcpus"),
        (lambda bad: a_build(VM, ON_GOLD, bad), "alternatives[1].vcpus"),
    ],
)
def test_the_field_of_the_wrong_flavor_is_named(wrong: Callable[[Flavor], BuildInstance], field: str) -> None:
    told = rejected(wrong(Flavor(vcpus=-1)))

    assert (told.field, str(told.value)) == (field, "-1")


def test_an_alternative_that_asks_for_nothing_is_rejected() -> None:
    told = rejected(a_build(VM, Flavor(name="none")))

    assert (told.field, str(told.value)) == ("alternatives[0]", "none")


def test_what_only_nodes_read_is_rejected_with_the_alternative_that_is_for_none() -> None:
    told = rejected(a_build(ON_GOLD, VM, ports=("port-1",)))

    assert told.field == "ports"
    assert told.reason.startswith("with alternatives[0]: only bare-metal nodes read it")


def test_the_number_of_flavors_is_bounded() -> None:
    assert len(accepted(a_build(*[VM] * 8))) == 8
    told = rejected(a_build(*[VM] * 9))
    assert (told.field, str(told.value)) == ("alternatives", "9")
    # A node of a preferred class is one more.
    preferring = rejected(a_build(with_preferred(CUSTOM_GOLD="preferred"), *[VM] * 7))
    assert (preferring.field, str(preferring.value)) == ("alternatives", "9")
