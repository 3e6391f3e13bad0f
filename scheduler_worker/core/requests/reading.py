"""The check of a build request, and the spec of one of its instances.

Every key of a request is understood, or the request is rejected with the field, the value and the reason. An ignored key
would mean an instance that lacks something the client asked for.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from bus.messages.build import BuildInstance, BuildRejected, Flavor
from bus.messages.placement import INTEGER_MAX
from placement_worker.core.vocabulary import CUSTOM, Vocabulary
from scheduler_worker.core.requests.spec import InstanceSpec

COUNT_MAX = 100
DEADLINE_S_MAX = 86_400
# Real flavors have some dozens; each one costs a pass over all hosts.
EXTRA_SPECS_MAX = 400
NAMED_HOSTS_MAX = 1_000
MB_PER_GB = 1024
# A long value is cut to this length in an error.
SHOWN_MAX = 200

_GROUPED = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
# Keys about the relation between groups, which are not supported yet.
_ABOUT_GROUPS = ("group_policy", "same_subtree")


class _Problem(NamedTuple):
    field: str
    value: object
    reason: str


class _Resource(NamedTuple):
    name: str
    amount: int


class _Trait(NamedTuple):
    name: str
    word: str
    field: str


class _ForPlugins(NamedTuple):
    key: str
    value: str


_Spec = _Resource | _Trait | _ForPlugins | _Problem


def read_request(
    build: BuildInstance, vocabulary: Vocabulary, scopes: frozenset[str] = frozenset()
) -> InstanceSpec | BuildRejected:
    """`scopes` are the prefixes (before the colon) of extra specs that plugins read."""
    specs = tuple(_specs_of(build, vocabulary, scopes))
    problem = next(_problems_of(build, specs), None)
    if problem is not None or build.flavor is None:
        problem = problem or _Problem("flavor", "", "there is none")
        return BuildRejected(
            request_id=build.request_id, field=problem.field, value=str(problem.value), reason=problem.reason
        )
    amounts = _amounts_of(build.flavor, specs)
    return InstanceSpec(
        amounts=tuple(sorted(amounts.items())),
        required=_traits_that_are("required", specs),
        forbidden=_traits_that_are("forbidden", specs),
        availability_zone=build.availability_zone,
        hosts=_lowered(build.hosts),
        ignore_hosts=_lowered(build.ignore_hosts),
        extra_specs=tuple(sorted((spec.key, spec.value) for spec in specs if isinstance(spec, _ForPlugins))),
        count=build.count,
        project=build.project if _may_ask_for_a_node(amounts) else "",
        is_for_nodes=any(True for _ in _only_nodes_read(build)),
    )


def _problems_of(build: BuildInstance, specs: tuple[_Spec, ...]) -> Iterator[_Problem]:
    if build.request_id is None:
        yield _Problem(
            "request_id", "", "there is none: the client chooses a uuid, and repeats it with the request"
        )
    if build.flavor is None:
        yield _Problem("flavor", "", "there is none: it says how large an instance is")
    yield from _problems_of_counts(build)
    if build.group is not None:
        yield _Problem("group", build.group.id, "server groups are not supported yet")
    if build.flavor is not None:
        yield from _problems_of_flavor(build.flavor, specs)
        yield from _problems_of_bare_metal(build, _amounts_of(build.flavor, specs))
    yield from (spec for spec in specs if isinstance(spec, _Problem))
    required = _traits_that_are("required", specs)
    for trait in _traits_that_are("forbidden", specs):
        if trait in required:
            field = next(spec.field for spec in specs if isinstance(spec, _Trait) and spec.name == trait)
            yield _Problem(field, trait, "is both required and forbidden, which no host can be")


def _problems_of_counts(build: BuildInstance) -> Iterator[_Problem]:
    if not 1 <= build.count <= COUNT_MAX:
        yield _Problem("count", build.count, f"a request builds 1 to {COUNT_MAX} instances")
    for field, named in (("hosts", build.hosts), ("ignore_hosts", build.ignore_hosts)):
        if len(named) > NAMED_HOSTS_MAX:
            yield _Problem(field, len(named), f"at most {NAMED_HOSTS_MAX} hosts can be named")
    if len(build.image_properties) > EXTRA_SPECS_MAX:
        reason = f"an image has at most {EXTRA_SPECS_MAX} properties here"
        yield _Problem("image_properties", len(build.image_properties), reason)
    given = build.instance_ids
    if given and len(given) != build.count:
        yield _Problem("instance_ids", len(given), f"{len(given)} ids are given for {build.count} instances")
    for position, instance in enumerate(given):
        if instance in given[:position]:
            yield _Problem(f"instance_ids[{position}]", instance, "is given twice")
    if build.deadline_s is not None and not 1 <= build.deadline_s <= DEADLINE_S_MAX:
        yield _Problem("deadline_s", build.deadline_s, f"a deadline is 1 to {DEADLINE_S_MAX} seconds away")


def _problems_of_bare_metal(build: BuildInstance, amounts: dict[str, int]) -> Iterator[_Problem]:
    if not _may_ask_for_a_node(amounts):
        for field, value in _only_nodes_read(build):
            reason = f"only bare-metal nodes read it, and the flavor asks for no class of theirs: resources:{CUSTOM}NAME"
            yield _Problem(field, value, reason)
    if build.image is not None and not build.image.source:
        yield _Problem("image.source", "", "there is none: it says where the image is")
    if build.ports and build.count > 1:
        yield _Problem(
            "ports", ", ".join(build.ports), f"a port is one instance's, and {build.count} are asked"
        )
    for number, port in enumerate(build.ports):
        if not port.strip("."):
            yield _Problem(
                f"ports[{number}]", port, "it is no id of a port: in a URL it would name another resource"
            )


def _only_nodes_read(build: BuildInstance) -> Iterator[tuple[str, str]]:
    """The fields of the request that only bare-metal nodes read, with their values."""
    if build.image is not None:
        yield "image", build.image.source
    if build.config_drive:
        yield "config_drive", build.config_drive[:SHOWN_MAX]
    if build.ports:
        yield "ports", ", ".join(build.ports)


def _may_ask_for_a_node(amounts: dict[str, int]) -> bool:
    """All resource classes of nodes are custom ones."""
    return any(resource.startswith(CUSTOM) for resource in amounts)


def _problems_of_flavor(flavor: Flavor, specs: tuple[_Spec, ...]) -> Iterator[_Problem]:
    if len(flavor.extra_specs) > EXTRA_SPECS_MAX:
        reason = f"a flavor has at most {EXTRA_SPECS_MAX} extra specs"
        yield _Problem("flavor.extra_specs", len(flavor.extra_specs), reason)
    for name in ("vcpus", "ram_mb", "root_gb", "ephemeral_gb", "swap_mb"):
        amount = getattr(flavor, name)
        if not 0 <= amount <= INTEGER_MAX:
            yield _Problem(f"flavor.{name}", amount, f"an amount is 0 to {INTEGER_MAX}")
    amounts = _amounts_of(flavor, specs)
    if not amounts:
        yield _Problem("flavor", flavor.name, "it asks for no resources, and an instance needs some")
    for resource, amount in amounts.items():
        if amount > INTEGER_MAX:
            yield _Problem("flavor", amount, f"{resource} adds up to {amount}, more than {INTEGER_MAX}")


def _specs_of(build: BuildInstance, vocabulary: Vocabulary, scopes: frozenset[str]) -> Iterator[_Spec]:
    if build.flavor is not None:
        for key, value in build.flavor.extra_specs.items():
            yield _read_spec(f"flavor.extra_specs.{key}", key, value, vocabulary, scopes)
    for key, value in build.image_properties.items():
        field = f"image_properties.{key}"
        if key.startswith("trait"):
            yield _read_spec(field, key, value, vocabulary, scopes)
        else:
            yield _Problem(
                field, value, f"unknown key {key!r}: of an image's properties only trait:TRAIT is read"
            )


def _read_spec(field: str, key: str, value: str, vocabulary: Vocabulary, scopes: frozenset[str]) -> _Spec:
    parts = _GROUPED.fullmatch(key)
    if parts is None:
        if key in _ABOUT_GROUPS:
            return _Problem(field, value, f"{key} is about granular groups, which cannot be asked for yet")
        if key.partition(":")[0] in scopes:
            return _ForPlugins(key, value)
        return _Problem(field, value, f"unknown key {key!r}: known are resources:CLASS and trait:TRAIT")
    kind, suffix, name = parts.groups()
    if suffix:
        return _Problem(
            field, value, f"{key!r} asks for granular group {suffix!r}: these cannot be asked for yet"
        )
    if kind == "resources":
        return _read_resource(field, name, value, vocabulary)
    return _read_trait(field, name, value, vocabulary)


def _read_resource(field: str, name: str, value: str, vocabulary: Vocabulary) -> _Resource | _Problem:
    if not vocabulary.knows_class(name) or not _NAME.fullmatch(name):
        return _Problem(
            field, name, f"resource class {name!r} is neither a standard one nor starts with {CUSTOM}"
        )
    if not _NUMBER.fullmatch(value) or int(value) > INTEGER_MAX:
        return _Problem(field, value, f"an amount is a whole number from 0 to {INTEGER_MAX}")
    return _Resource(name, int(value))


def _read_trait(field: str, name: str, value: str, vocabulary: Vocabulary) -> _Trait | _Problem:
    if not vocabulary.knows_trait(name) or not _NAME.fullmatch(name):
        return _Problem(field, name, f"trait {name!r} is neither a standard one nor starts with {CUSTOM}")
    if value not in ("required", "forbidden"):
        return _Problem(field, value, "a trait is required or forbidden")
    return _Trait(name, value, field)


def _amounts_of(flavor: Flavor, specs: tuple[_Spec, ...]) -> dict[str, int]:
    """The flavor's amounts, overridden by its extra specs, without those that are 0."""
    amounts = {
        "VCPU": flavor.vcpus,
        "MEMORY_MB": flavor.ram_mb,
        "DISK_GB": flavor.root_gb + flavor.ephemeral_gb + -(-flavor.swap_mb // MB_PER_GB),
    }
    asked = {spec.name: spec.amount for spec in specs if isinstance(spec, _Resource)}
    if asked.get("PCPU"):
        # Dedicated processors (PCPU) replace shared ones.
        del amounts["VCPU"]
    return {resource: amount for resource, amount in (amounts | asked).items() if amount}


def _traits_that_are(word: str, specs: tuple[_Spec, ...]) -> tuple[str, ...]:
    return tuple(sorted({spec.name for spec in specs if isinstance(spec, _Trait) and spec.word == word}))


def _lowered(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({name.lower() for name in names}))
