"""The check of a request, and the spec of one of its instances.

The request's parts are read, checked together, and made into a spec. Every key of a request is understood, or the
request is rejected with the field, the value and the reason. An ignored key would mean an instance that lacks something the
client asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, json, structs

from engine.flavors import (
    INSTANCE_PRIORITY_MAX,
    PRIORITY,
    Flavor,
    InstanceId,
    InstanceRequest,
    RequestProblem,
    is_priority,
    parts_of,
    priority_in,
)
from engine.guests import (
    HARDWARE_IMAGE_KEYS,
    HOST_SCOPES,
    HOST_SPEC_KEYS,
    IMAGE_KEYS,
    SPEC_KEYS,
    is_guest_key,
    is_host_key,
)
from engine.hosts import POLICY, why_no_policy
from engine.inventories import CUSTOM, INTEGER_MAX, AggregateId, Vocabulary
from engine.requests.grammar import (
    AskedPolicy,
    AskedTrait,
    CellOfGuest,
    DefaultAmount,
    ForPlugins,
    ImageProperty,
    NearCells,
    RequestPart,
    read_grouped,
)
from engine.requests.groups import (
    Needed,
    attached_groups,
    groups_of,
    guest_groups,
    needed_by,
    policy_of,
    preferred_classes_of,
    preferred_traits_of,
    problems_of_groups,
    subtrees_of,
    traits_that_are,
    weighed_by,
)
from engine.requests.spec import (
    PROFILE,
    InstanceSpec,
    problems_of_profile,
    some_may_be_of_nodes,
    with_page_sizes,
)

COUNT_MAX = 1_000
DEADLINE_S_MAX = 86_400
WAIT_S_MAX = 30 * 86_400
# Of requests that wait for room.
PRIORITY_MAX = 100
PRIORITY_RANGE = f"a priority is a whole number from -{INSTANCE_PRIORITY_MAX} to {INSTANCE_PRIORITY_MAX}"
# Real flavors have some dozens; each one costs a pass over all hosts.
EXTRA_SPECS_MAX = 400
# The value of one: a page of stored images or flavors has hundreds of them.
VALUE_LENGTH_MAX = 1_000
# In a message. The order to the cell has them all, with the alternates and other flavors: together less than a parcel may have.
PAIRS_BYTES_MAX = 16 * 1024
CONFIG_DRIVE_BYTES_MAX = 128 * 1024
NAMED_HOSTS_MAX = 1_000
# A long value is cut to this length in an error.
SHOWN_MAX = 200

MB_PER_GB = 1024


def read_request(
    request: InstanceRequest,
    vocabulary: Vocabulary,
    scopes: frozenset[str] = frozenset(),
    image_keys: frozenset[str] = frozenset(),
) -> InstanceSpec | RequestProblem:
    """Check a request, and make the spec of one of its instances; if a part of the request is wrong, return the first
    problem.

    `scopes` are the prefixes (before the colon) of the extra specs that plugins read, and `image_keys` the image
    properties that plugins read.
    """
    read = tuple(_parts_of(request, vocabulary, scopes, image_keys))
    parts = (*read, *guest_groups(request, read))
    needed = needed_by(parts)
    problem = next(_problems_of(request, parts, needed), None)
    if problem is not None:
        return problem
    is_for_nodes = _is_for_nodes(request, needed)
    return InstanceSpec(
        amounts=tuple(sorted(needed.total.items())),
        required=traits_that_are("required", parts),
        forbidden=traits_that_are("forbidden", parts),
        availability_zone=request.availability_zone,
        hosts=lowered(request.hosts),
        ignore_hosts=lowered(request.ignore_hosts),
        extra_specs=tuple(sorted((part.key, part.value) for part in parts if isinstance(part, ForPlugins))),
        count=request.count,
        project=request.project,
        flavor=request.flavor.name if request.flavor else "",
        is_for_nodes=is_for_nodes,
        image="" if request.image is None or is_for_nodes else request.image.source,
        preferred=preferred_traits_of(parts),
        preferred_classes=preferred_classes_of(parts),
        groups=groups_of(parts, needed),
        isolates=policy_of(parts) == "isolate",
        same_subtree=subtrees_of(parts),
        cells=tuple([part.suffix for part in parts if isinstance(part, CellOfGuest)]),
        near=tuple([(part.suffix, part.nearness) for part in parts if isinstance(part, NearCells)]),
        member_of=tuple(sorted({_in_order(any_of) for any_of in request.member_of})),
        forbidden_aggregates=_in_order(request.forbidden_aggregates),
        policy=weighed_by(parts),
        place=request.place,
        image_properties=tuple(
            sorted((part.key, part.value) for part in parts if isinstance(part, ImageProperty))
        ),
    )


def _parts_of(
    request: InstanceRequest, vocabulary: Vocabulary, scopes: frozenset[str], image_keys: frozenset[str]
) -> Iterator[RequestPart]:
    if (flavor := request.flavor) is not None:
        swap_gb = -(-flavor.swap_mb // MB_PER_GB)
        yield DefaultAmount("DISK_GB", flavor.root_gb + flavor.ephemeral_gb + swap_gb)
        yield from problems_of_profile(flavor)
        for key, value in flavor.extra_specs.items():
            is_read = is_host_key(key) and key.partition(":")[0] not in scopes
            if key not in (PROFILE, PRIORITY) and not is_read and not is_guest_key(key):
                yield _extra_spec(key, value, vocabulary, scopes)
    for key, value in request.image_properties.items():
        if key in image_keys:
            yield ImageProperty(key, value)
        elif key not in HARDWARE_IMAGE_KEYS and not is_guest_key(key):
            yield _image_property(key, value, vocabulary, image_keys)
    yield from attached_groups(request, vocabulary)


def _extra_spec(key: str, value: str, vocabulary: Vocabulary, scopes: frozenset[str]) -> RequestPart:
    field = f"flavor.extra_specs.{key}"
    if key == POLICY:
        why = why_no_policy(value)
        return RequestProblem(field, value, why) if why else AskedPolicy(value)
    part = read_grouped(field, key, value, vocabulary)
    if part is not None:
        return part
    if key.partition(":")[0] in scopes:
        return ForPlugins(key, value)
    named = {f"{scope}NAME" for scope in (*HOST_SCOPES, *(f"{each}:" for each in scopes))}
    keys = SPEC_KEYS | HOST_SPEC_KEYS | {PROFILE} | named
    return RequestProblem(field, value, f"unknown key {key!r}: {_known(keys)}")


def _image_property(key: str, value: str, vocabulary: Vocabulary, image_keys: frozenset[str]) -> RequestPart:
    """Read a property by which the image requires or forbids a trait of the whole instance."""
    field = f"image_properties.{key}"
    part = read_grouped(field, key, value, vocabulary) if key.startswith("trait") else None
    if part is None:
        known = ", ".join(("trait:TRAIT", *sorted(IMAGE_KEYS | HARDWARE_IMAGE_KEYS | image_keys)))
        return RequestProblem(
            field, value, f"unknown key {key!r}: of an image's properties, known are {known}"
        )
    if isinstance(part, AskedTrait) and part.suffix:
        return RequestProblem(field, value, "an image has no granular groups: only trait:TRAIT is read")
    return part


def _known(keys: frozenset[str]) -> str:
    grouped = (
        "resources:CLASS",
        "resourcesN:CLASS",
        "trait:TRAIT",
        "traitN:TRAIT",
        "group_policy",
        "same_subtree",
        POLICY,
        PRIORITY,
    )
    return f"known are {', '.join((*grouped, *sorted(keys)))}"


def _problems_of(
    request: InstanceRequest, parts: Sequence[RequestPart], needed: Needed
) -> Iterator[RequestProblem]:
    yield from _problems_of_counts(request)
    yield from _problems_of_wait(request)
    if request.flavor is None:
        yield RequestProblem("flavor", "", "there is none: it says how large an instance is")
    else:
        yield from _problems_of_flavor(request.flavor, needed)
        yield from _problems_of_bare_metal(request, needed)
    yield from (part for part in parts if isinstance(part, RequestProblem))
    yield from problems_of_groups(parts, needed)


def _problems_of_counts(request: InstanceRequest) -> Iterator[RequestProblem]:
    if not 1 <= request.count <= COUNT_MAX:
        yield RequestProblem("count", request.count, f"a request builds 1 to {COUNT_MAX} instances")
    for field, named in (("hosts", request.hosts), ("ignore_hosts", request.ignore_hosts)):
        if len(named) > NAMED_HOSTS_MAX:
            yield RequestProblem(field, len(named), f"at most {NAMED_HOSTS_MAX} hosts can be named")
    if len(request.image_properties) > EXTRA_SPECS_MAX:
        reason = f"an image has at most {EXTRA_SPECS_MAX} properties here"
        yield RequestProblem("image_properties", len(request.image_properties), reason)
    yield from _too_long("image_properties", request.image_properties)
    given = request.instance_ids
    if given and len(given) != request.count:
        yield RequestProblem(
            "instance_ids", len(given), f"{len(given)} ids are given for {request.count} instances"
        )
    if not is_priority(request.priority):
        yield RequestProblem("priority", request.priority, PRIORITY_RANGE)
    seen: set[InstanceId] = set()
    for position, instance in enumerate(given):
        if instance in seen:
            yield RequestProblem(f"instance_ids[{position}]", instance, "is given twice")
        seen.add(instance)
    if request.deadline_s is not None and not 1 <= request.deadline_s <= DEADLINE_S_MAX:
        yield RequestProblem(
            "deadline_s", request.deadline_s, f"a deadline is 1 to {DEADLINE_S_MAX} seconds away"
        )


def _problems_of_wait(request: InstanceRequest) -> Iterator[RequestProblem]:
    wait = request.wait
    if wait is None:
        return
    if not 1 <= wait.for_s <= WAIT_S_MAX:
        yield RequestProblem(
            "wait.for_s", wait.for_s, f"an instance waits 1 to {WAIT_S_MAX} seconds for room"
        )
    if not 0 <= wait.priority <= PRIORITY_MAX:
        yield RequestProblem(
            "wait.priority", wait.priority, f"a priority is 0 to {PRIORITY_MAX}, the highest first"
        )
    if request.all_or_nothing:
        yield RequestProblem("all_or_nothing", "true", "each instance waits for itself: leave out `wait`")


def priority_of(request: InstanceRequest) -> int:
    """The priority of a request's instances: what it says, or else what its flavor says."""
    return request.priority or priority_in(request.flavor) or 0


def priority_of_wait(request: InstanceRequest) -> int:
    """The priority with which its instances wait for room."""
    named = 0 if request.wait is None else request.wait.priority
    return named or min(max(priority_of(request), 0), PRIORITY_MAX)


def _problems_of_bare_metal(request: InstanceRequest, needed: Needed) -> Iterator[RequestProblem]:
    if request.ports and not some_may_be_of_nodes(needed.total):
        reason = (
            f"only bare-metal nodes read it, and the flavor asks for no class of theirs: resources:{CUSTOM}NAME"
            "; a port on a hypervisor names the resources that it needs there (`port_requests`)"
        )
        yield RequestProblem("ports", ", ".join(request.ports), reason)
    if request.image is not None and not request.image.source:
        yield RequestProblem("image.source", "", "there is none: it says where the image is")
    if (size := len(json.encode(request.config_drive))) > CONFIG_DRIVE_BYTES_MAX:
        reason = f"it has {size} bytes, at most {CONFIG_DRIVE_BYTES_MAX} are allowed"
        yield RequestProblem("config_drive", size, reason)
    try:
        parts_of(request.config_drive)
    except ValueError as wrong:
        yield RequestProblem("config_drive", request.config_drive[:SHOWN_MAX], str(wrong))
    if request.ports and request.count > 1:
        yield RequestProblem(
            "ports", ", ".join(request.ports), f"a port is one instance's, and {request.count} are asked"
        )
    for number, port in enumerate(request.ports):
        if not port.strip("."):
            yield RequestProblem(
                f"ports[{number}]", port, "it is no id of a port: in a URL it would name another resource"
            )


def _is_for_nodes(request: InstanceRequest, needed: Needed) -> bool:
    """Can only a bare-metal node serve this request? Only nodes read ports. A request with an image or a config drive
    counts as one for nodes, too, if it asks for custom classes alone.
    """
    if request.ports:
        return True
    has_software = request.image is not None or bool(request.config_drive)
    return has_software and all(resource.startswith(CUSTOM) for resource in needed.total)


def _problems_of_flavor(flavor: Flavor, needed: Needed) -> Iterator[RequestProblem]:
    if len(flavor.extra_specs) > EXTRA_SPECS_MAX:
        reason = f"a flavor has at most {EXTRA_SPECS_MAX} extra specs"
        yield RequestProblem("flavor.extra_specs", len(flavor.extra_specs), reason)
    yield from _too_long("flavor.extra_specs", flavor.extra_specs)
    for name in ("vcpus", "ram_mb", "root_gb", "ephemeral_gb", "swap_mb"):
        amount = getattr(flavor, name)
        if not 0 <= amount <= INTEGER_MAX:
            yield RequestProblem(f"flavor.{name}", amount, f"an amount is 0 to {INTEGER_MAX}")
    if priority_in(flavor) is None:
        yield RequestProblem(f"flavor.extra_specs.{PRIORITY}", flavor.extra_specs[PRIORITY], PRIORITY_RANGE)
    if not needed.total:
        yield RequestProblem("flavor", flavor.name, "it asks for no resources, and an instance needs some")
    for resource, amount in needed.total.items():
        if amount > INTEGER_MAX:
            yield RequestProblem("flavor", amount, f"{resource} adds up to {amount}, more than {INTEGER_MAX}")


def _too_long(field: str, pairs: Mapping[str, str]) -> Iterator[RequestProblem]:
    for key, value in pairs.items():
        for text in (key, value):
            if len(text) > VALUE_LENGTH_MAX:
                reason = f"it has {len(text)} characters, at most {VALUE_LENGTH_MAX} are allowed"
                yield RequestProblem(f"{field}.{key[:SHOWN_MAX]}", text[:SHOWN_MAX], reason)
    if (size := len(json.encode(pairs))) > PAIRS_BYTES_MAX:
        reason = f"together they have {size} bytes, at most {PAIRS_BYTES_MAX} are allowed"
        yield RequestProblem(field, size, reason)


def _in_order(aggregates: Iterable[AggregateId]) -> tuple[AggregateId, ...]:
    """The aggregates in one order: requests that name the same ones in another order are equal."""
    return tuple(sorted(set(aggregates)))


def lowered(names: Iterable[str]) -> tuple[str, ...]:
    """Names of hosts as a spec has them."""
    return tuple(sorted({name.lower() for name in names}))


# Each alternative is a choice of its own.
ALTERNATIVES_MAX = 8

RESOURCES = "resources:"

ReadFlavor = Callable[[InstanceRequest], InstanceSpec | RequestProblem]


class Alternative(Struct, frozen=True, array_like=True):
    """A flavor that a request accepts, and what an instance of it needs. `name` is for people."""

    name: str
    flavor: Flavor
    spec: InstanceSpec


def read_alternatives(request: InstanceRequest, read: ReadFlavor) -> tuple[Alternative, ...] | RequestProblem:
    """Read each flavor that the request accepts by `read`, as if it were the flavor of a request; return the problem
    if one of them is wrong.
    """
    flavors = (request.flavor or Flavor(), *request.alternatives)
    if len(flavors) > ALTERNATIVES_MAX:
        return _too_many(len(flavors))
    found: list[Alternative] = []
    for number, flavor in enumerate(flavors):
        field = f"alternatives[{number - 1}]" if number else "flavor"
        of_pages = with_page_sizes(flavor, request.image_properties)
        for name, of_size in of_pages:
            is_own = of_size is request.flavor
            with_flavor = request if is_own else structs.replace(request, flavor=of_size)
            spec = read(with_flavor)
            if isinstance(spec, RequestProblem):
                return _about(field, spec) if number else spec
            if of_size is of_pages[0][1]:
                found += _on_preferred_nodes(with_flavor, of_size, spec, read)
            found.append(Alternative(f"{flavor.name or field}{name}", of_size, spec))
    if len(found) > ALTERNATIVES_MAX:
        return _too_many(len(found))
    return tuple(found)


def with_specs(
    alternatives: Sequence[Alternative], change: Callable[[InstanceSpec], InstanceSpec]
) -> tuple[Alternative, ...]:
    return tuple([structs.replace(each, spec=change(each.spec)) for each in alternatives])


def _on_preferred_nodes(
    request: InstanceRequest, flavor: Flavor, spec: InstanceSpec, read: ReadFlavor
) -> Iterator[Alternative]:
    """The flavor on a node of each custom class that it prefers, the one with the highest weight first. The class
    replaces the sizes; all other demands stay.
    """
    for resource, weight in sorted(spec.preferred_classes, key=lambda each: (-each[1], each[0])):
        if weight <= 0 or not resource.startswith(CUSTOM) or resource in spec.classes:
            continue
        others = {
            key: value
            for key, value in flavor.extra_specs.items()
            if not key.startswith(RESOURCES) and not is_guest_key(key)
        }
        on_node = Flavor(name=flavor.name, extra_specs={**others, f"{RESOURCES}{resource}": "1"})
        needs = read(structs.replace(request, flavor=on_node))
        # A request that makes no sense on a node is still a request for the flavor itself.
        if isinstance(needs, InstanceSpec):
            # A device of a hypervisor may have this class, too.
            needs = structs.replace(needs, is_for_nodes=True, image="")
            yield Alternative(f"a node of {resource}", on_node, needs)


def _about(field: str, problem: RequestProblem) -> RequestProblem:
    """The problem of the flavor in this field of the request."""
    if problem.field.partition(".")[0] == "flavor":
        return structs.replace(problem, field=field + problem.field.removeprefix("flavor"))
    return structs.replace(problem, reason=f"with {field}: {problem.reason}")


def _too_many(number: int) -> RequestProblem:
    return RequestProblem(
        "alternatives",
        number,
        f"a request accepts at most {ALTERNATIVES_MAX} flavors: its own, its alternatives, a node of each custom "
        "class that one of these prefers, and one for each size that hw:mem_page_size leaves open",
    )
