"""Ports and volumes that need resources of their own: each is a granular group.

A physical network and a kind of port are traits of the provider that the port is on, by the names that Neutron's agents report.
"""

import re
from collections.abc import Iterator, Sequence

from bus.messages.build import BuildInstance, PortRequest, VolumeRequest
from placement_worker.core.vocabulary import CUSTOM, Vocabulary
from scheduler_worker.core.requests.groups_grammar import read_grouped
from scheduler_worker.core.requests.parts import AskedTrait, RequestPart, RequestProblem, Resource

PHYSNET, VNIC_TYPE = "CUSTOM_PHYSNET_", "CUSTOM_VNIC_TYPE_"
TRAIT_MAX = 255

_NOT_IN_TRAITS = re.compile(r"[^A-Z0-9_]+", re.ASCII)


def attached_groups(build: BuildInstance, vocabulary: Vocabulary) -> Iterator[RequestPart]:
    kinds: tuple[tuple[str, str, Sequence[PortRequest | VolumeRequest]], ...] = (
        ("port_requests", "port", build.port_requests),
        ("volume_requests", "volume", build.volume_requests),
    )
    for field, kind, asked in kinds:
        if asked and build.count > 1:
            reason = f"a {kind} is one instance's, and {build.count} are asked"
            yield RequestProblem(field, ", ".join(each.id for each in asked), reason)
        seen = set()
        for number, each in enumerate(asked):
            at = f"{field}[{number}]"
            if each.id in seen or not each.id:
                yield RequestProblem(f"{at}.id", each.id, f"each {kind} has an id, and is named once")
            seen.add(each.id)
            if not each.resources:
                yield RequestProblem(
                    f"{at}.resources", "", f"there are none: a {kind} without any needs no request"
                )
            yield from _group(each, at, f"{kind} {each.id}", vocabulary)


def _group(
    each: PortRequest | VolumeRequest, at: str, suffix: str, vocabulary: Vocabulary
) -> Iterator[RequestPart]:
    for resource, amount in each.resources.items():
        part = read_grouped(f"{at}.resources.{resource}", f"resources:{resource}", str(amount), vocabulary)
        yield _in_group(part, suffix)
    for word, traits in (("required", each.required), ("forbidden", each.forbidden)):
        for trait in traits:
            yield _in_group(read_grouped(f"{at}.{word}", f"trait:{trait}", word, vocabulary), suffix)
    if isinstance(each, PortRequest):
        for field, prefix, name in (
            ("physical_network", PHYSNET, each.physical_network),
            ("vnic_type", VNIC_TYPE, each.vnic_type),
        ):
            if name:
                yield _trait_for(f"{at}.{field}", prefix, name, suffix)


def _in_group(part: RequestPart | None, suffix: str) -> RequestPart:
    assert isinstance(part, Resource | AskedTrait | RequestProblem), "these keys are about amounts and traits"
    return part if isinstance(part, RequestProblem) else part._replace(suffix=suffix)


def _trait_for(field: str, prefix: str, name: str, suffix: str) -> AskedTrait | RequestProblem:
    trait = prefix + _NOT_IN_TRAITS.sub("_", name.upper())
    if len(trait) > TRAIT_MAX:
        return RequestProblem(field, name, f"its trait {CUSTOM}... has more than {TRAIT_MAX} characters")
    return AskedTrait(suffix, trait, "required", field)
