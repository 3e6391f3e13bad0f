"""Resources that neither flavor nor image ask for: Nova's request groups, for ports, accelerators and devices, each as a port request
of ours. The name of a group's requester is what Nova looks for in the mappings of the answer.
"""

from collections.abc import Mapping

from scheduler_worker.nova.json_fields import Fields, texts_in
from scheduler_worker.nova.objects import object_in, objects_in
from scheduler_worker.nova.refusals import RefusedError
from scheduler_worker.nova.server_demands import ALIAS, PROFILE

# How our requests name the groups of ports among the granular groups.
PORT = "port "
# The requesters of the groups of a device profile are numbered.
OF_PROFILE = "device_profile_"
GROUPS_MAX = 16
# Port requests, each as the fields of one.
PortGroups = tuple[Mapping[str, object], ...]

_GROUP = frozenset(
    {
        *("use_same_provider", "resources", "required_traits", "forbidden_traits", "requester_id"),
        # What an earlier choice gave the group: not asked for, but told.
        "provider_uuids",
    }
)
_LEVEL = frozenset({"same_subtree"})


def groups_of(spec: Fields) -> PortGroups:
    groups = objects_in(spec, "requested_resources", "RequestGroup")
    if len(groups) > GROUPS_MAX:
        raise spec.refuse(
            "requested_resources", f"an instance has at most {GROUPS_MAX} groups beside its flavor"
        )
    return tuple(_group(each) for each in groups)


def _group(group: Fields) -> dict[str, object]:
    group.refuse_unknown(_GROUP)
    if not group.flag("use_same_provider", default=True):
        raise group.refuse("use_same_provider", "only a group that one provider serves is chosen for")
    requester = group.text("requester_id")
    if not requester or "," in requester:
        raise group.refuse("requester_id", "it must name who asks for the group, without a comma")
    resources = group.object("resources")
    amounts = {name: amount for name in resources.values if (amount := resources.whole(name))}
    if not amounts:
        raise group.refuse("resources", "a group must ask for an amount of something")
    return {
        "id": requester,
        "resources": amounts,
        "required": sorted(set(group.texts("required_traits"))),
        "forbidden": sorted(set(group.texts("forbidden_traits"))),
    }


def served_keys(spec: Fields, groups: PortGroups) -> frozenset[str]:
    """The keys of the flavor whose devices these groups ask for. Refuses a device that no group asks for.

    With PCI in placement, each device of an alias has its group, named by the request's id and a number; the device of a port has none.
    What an alias says beside a class and traits is checked by the compute alone.
    """
    names = {str(each["id"]) for each in groups}
    keys = {PROFILE} if any(name.startswith(OF_PROFILE) for name in names) else set()
    listed = object_in(spec, "pci_requests", "InstancePCIRequests")
    for request in () if listed is None else objects_in(listed, "requests", "InstancePCIRequest"):
        if request.value("alias_name") is None:
            raise request.refuse(
                "requester_id",
                "the device of a port is not in placement: only nova-scheduler can choose for it",
            )
        id_, count = request.text("request_id"), request.whole("count")
        for number in range(count):
            if f"{id_}-{number}" not in names:
                reason = (
                    f"no group in requested_resources asks for device {number + 1} of {count}: devices are chosen by placement alone, with "
                    "[filter_scheduler] pci_in_placement of Nova's services and [pci] report_in_placement of its computes"
                )
                raise request.refuse("alias_name", reason)
        keys.add(ALIAS)
    return frozenset(keys)


def subtrees_of(spec: Fields, groups: PortGroups) -> tuple[tuple[str, ...], ...]:
    """The suffixes of groups whose providers must be in one subtree, for each such wish."""
    level = object_in(spec, "request_level_params", "RequestLevelParams")
    if level is None:
        return ()
    level.refuse_unknown(_LEVEL)
    known = {each["id"] for each in groups}
    found: set[tuple[str, ...]] = set()
    for number, wish in enumerate(level.list("same_subtree")):
        at = f"{level.at('same_subtree')}[{number}]"
        if not isinstance(wish, list):
            raise RefusedError(at, wish, "it must be a list of groups")
        for name in (names := texts_in(wish, at)):
            if name not in known:
                raise RefusedError(at, name, "no group of requested_resources has this requester")
        if names:
            found.add(tuple(sorted({f"{PORT}{name}" for name in names})))
    return tuple(sorted(found))
