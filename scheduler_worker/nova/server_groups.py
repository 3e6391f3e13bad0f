"""The server group that an instance joins, with what Nova knows of its members."""

from uuid import UUID

from msgspec import Struct

from bus.message import GroupId
from bus.messages.placement import GroupPolicy, ServerGroup
from scheduler_worker.nova.json_fields import Fields, id_in
from scheduler_worker.nova.objects import object_in

_GROUP = frozenset(
    {
        *("uuid", "policy", "policies", "members", "hosts", "_rules"),
        # Of no meaning for a choice.
        *("id", "user_id", "project_id", "name", "created_at", "updated_at", "deleted_at", "deleted"),
    }
)
POLICIES: dict[str, GroupPolicy] = {
    "affinity": "affinity",
    "anti-affinity": "anti-affinity",
    "soft-affinity": "soft-affinity",
    "soft-anti-affinity": "soft-anti-affinity",
}
MAX_PER_HOST = "max_server_per_host"
PER_HOST_MAX = 1_000_000


class NovaGroup(Struct, frozen=True):
    """`members` are instances, and `hosts` are Nova's names of the compute services that have one of them."""

    definition: ServerGroup
    members: tuple[UUID, ...] = ()
    hosts: tuple[str, ...] = ()


def group_of(spec: Fields) -> NovaGroup | None:
    group = object_in(spec, "instance_group", "InstanceGroup")
    if group is None:
        return None
    group.refuse_unknown(_GROUP)
    members = group.texts("members")
    return NovaGroup(
        definition=ServerGroup(
            id=GroupId(group.id("uuid")),
            policy=_policy(group),
            max_per_host=_max_per_host_of(group.object("_rules")),
        ),
        members=tuple(id_in(each, group.at("members")) for each in members),
        hosts=group.texts("hosts"),
    )


def _policy(group: Fields) -> GroupPolicy:
    """Releases of Nova before Rocky have a list of one policy."""
    older = group.texts("policies")
    field, name = (
        ("policies", older[0])
        if older and group.value("policy") is None
        else ("policy", group.text("policy"))
    )
    policy = POLICIES.get(name)
    if policy is None:
        raise group.refuse(field, f"a policy is one of {', '.join(POLICIES)}")
    return policy


def _max_per_host_of(rules: Fields) -> int:
    """The limit of anti-affinity, which is a text in Nova's messages."""
    rules.refuse_unknown({MAX_PER_HOST})
    text = rules.text(MAX_PER_HOST, "1")
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= PER_HOST_MAX):  # noqa: PLR2004
        raise rules.refuse(MAX_PER_HOST, f"it must be a whole number from 1 to {PER_HOST_MAX}")
    return int(text)
