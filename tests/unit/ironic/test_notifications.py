"""Every captured message, and everything that a message may have wrong, is read into a value; each captured scenario, replayed."""

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inventories import ProviderId
from ironic_sync.core.notifications import (
    AllocationNotified,
    Ignored,
    NodeDoubted,
    NodeNotified,
    Notification,
    UnreadableNotification,
    read,
)
from ironic_sync.core.ordering import OrderingRules, after_notification
from ironic_sync.core.rows import NodeRow
from tests.properties.bounds import BOUNDED
from tests.unit.ironic.captured import (
    SCENARIOS,
    bodies_of,
    body_of,
    captured,
    data_of,
    notification_in,
)
from tests.unit.ironic.node_rows import WITH_REST, WITHOUT_REST, is_offered

# What becomes of each captured event type.
KINDS: dict[str, type[Notification | Ignored]] = {
    "node.create.start": Ignored,
    "node.create.end": NodeNotified,
    "node.create.error": NodeDoubted,
    "node.update.start": Ignored,
    "node.update.end": NodeNotified,
    "node.update.error": NodeDoubted,
    "node.delete.start": Ignored,
    "node.delete.end": NodeNotified,
    "node.delete.error": NodeDoubted,
    "node.maintenance_set.start": Ignored,
    "node.maintenance_set.end": NodeNotified,
    "node.power_set.start": Ignored,
    "node.power_set.end": NodeNotified,
    "node.power_state_corrected.success": NodeNotified,
    "node.provision_set.start": NodeNotified,
    "node.provision_set.success": NodeNotified,
    "node.provision_set.end": NodeNotified,
    "node.provision_set.error": NodeNotified,
    "allocation.create.start": Ignored,
    "allocation.create.end": AllocationNotified,
    "allocation.update.start": Ignored,
    "allocation.update.end": AllocationNotified,
    "allocation.delete.start": Ignored,
    "allocation.delete.end": AllocationNotified,
}
NEEDED = (
    "uuid",
    "provision_state",
    "power_state",
    "maintenance",
    "retired",
    "fault",
    "resource_class",
    "traits",
    "instance_uuid",
    "conductor_group",
    "owner",
    "lessee",
)
USED = (
    *NEEDED,
    "name",
    "protected",
    "target_provision_state",
    "maintenance_reason",
    "driver",
    "last_error",
    "provision_updated_at",
    "properties",
)
WRONG: dict[str, Any] = {
    "number": 7.5,
    "huge number": 10**400,
    "list": [7],
    "object": {"a": [None]},
    "lists in lists": [[[[]]]],
}
COMMON_FIELDS = tuple(sorted(data_of(captured("baremetal.node.maintenance_set.end"))))


def an_update(**data: Any) -> bytes:
    notification = captured("baremetal.node.update.end")
    data_of(notification).update(data)
    return body_of(notification)


def told(body: bytes) -> NodeNotified:
    said = read(body)
    assert isinstance(said, NodeNotified), said
    return said


def unread(body: bytes) -> UnreadableNotification:
    said = read(body)
    assert isinstance(said, UnreadableNotification), said
    return said


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_captured_message_is_taken_doubted_or_ignored_by_its_event_type(scenario: str) -> None:
    bodies = bodies_of(scenario)
    assert bodies
    for body in bodies:
        event_type = notification_in(body)["event_type"]
        said = read(body)
        assert type(said) is KINDS[event_type.removeprefix("baremetal.")], event_type
        if isinstance(said, NodeNotified):
            assert said.is_deleted == (event_type == "baremetal.node.delete.end")
            assert bool(said.doubt) == event_type.endswith(".error")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_notification_without_its_envelope_says_the_same(scenario: str) -> None:
    for body in bodies_of(scenario):
        assert read(body_of(notification_in(body))) == read(body)


def test_a_notification_says_who_says_it_and_when() -> None:
    said = told(bodies_of("13_deploy_as_nova")[-1])

    # 2026-11-20 07:31:22.068874 UTC
    assert (said.kind, said.at_us) == ("provision_set", 1_795_159_882_068_874)
    assert said.publisher == "ironic-conductor.ironic-cond-1"


PROPERTIES = {
    "cpus": 8,
    "cpu_arch": "x86_64",
    "root_device": {"size": ">= 10"},
    "huge": 2**70,
    "nul": "a\0b",
    "long": "x" * 2_001,
}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (
            bodies_of("13_deploy_as_nova")[-1],
            {
                "id": UUID("46a95f4b-c780-42fc-9dc4-9efea8b99980"),
                "instance_uuid": UUID("11111111-2222-3333-4444-555555555555"),
                "provision_state": "active",
                "power_state": None,
                "maintenance": False,
                "resource_class": "baremetal-gold",
                "traits": (),
                "shard": None,
                "provision_updated_at": datetime(2026, 11, 20, 7, 31, 22, tzinfo=UTC),
            },
        ),
        (
            bodies_of("27_group_shard_owner_lessee_misc")[-1],
            {
                "conductor_group": "rack1",
                "owner": "project-a",
                "lessee": None,
                "properties": {"cpus": 16, "capabilities": "a:b"},
            },
        ),
        (bodies_of("07_provide_cleaning_available")[-1], {"traits": ("CUSTOM_GPU",)}),
        (
            bodies_of("71_out_of_band_power_change_and_silent_bmc")[2],
            {"maintenance": True, "fault": "power failure"},
        ),
        (an_update(traits=["CUSTOM_B", "CUSTOM_A", "CUSTOM_B"]), {"traits": ("CUSTOM_A", "CUSTOM_B")}),
        # Null means no where Ironic allows it.
        (
            an_update(
                **dict.fromkeys(("maintenance", "retired", "traits", "conductor_group", "properties"), None)
            ),
            {"maintenance": False, "retired": False, "traits": (), "conductor_group": ""},
        ),
        # Only plain properties are kept, and long texts are cut.
        (
            an_update(properties=PROPERTIES, last_error="e" * 100_000, maintenance_reason="m" * 100_000),
            {
                "properties": {"cpus": 8, "cpu_arch": "x86_64"},
                "last_error": "e" * 2_000,
                "maintenance_reason": "m" * 2_000,
            },
        ),
    ],
    ids=itertools.count(),
)
def test_a_node_is_read_field_by_field(body: bytes, fields: dict[str, object]) -> None:
    node = told(body).node

    assert {name: getattr(node, name) for name in fields} == fields


def test_an_allocation_names_its_node_only_when_it_is_deleted() -> None:
    said = [one for body in bodies_of("29_allocation") if isinstance(one := read(body), AllocationNotified)]

    assert [(one.kind, one.node is not None) for one in said] == [
        ("create", False),
        ("update", False),
        ("delete", True),
        ("create", False),
        ("delete", False),
    ]


def test_of_a_failed_request_only_the_id_of_the_node_is_believed() -> None:
    failed = captured("baremetal.node.create.error")
    data = data_of(failed)
    for field in data.keys() - {"uuid"}:
        data[field] = {"wrong": True}

    said = read(body_of(failed))

    assert isinstance(said, NodeDoubted)
    assert str(said.id) == data["uuid"]
    assert said.doubt == "create ended in an error"


@pytest.mark.parametrize("field", COMMON_FIELDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_field_of_a_wrong_type_is_named_if_it_is_used_and_skipped_if_not(field: str, wrong: str) -> None:
    for event_type in (
        "node.maintenance_set.end",
        "node.provision_set.end",
        "node.update.end",
        "node.power_state_corrected.success",
    ):
        notification = captured(f"baremetal.{event_type}")
        as_it_was = read(body_of(notification))
        data = data_of(notification)
        node_id = data["uuid"]
        data[field] = {} if field == "properties" and isinstance(WRONG[wrong], dict) else WRONG[wrong]

        said = read(body_of(notification))

        if field not in USED:
            assert said == as_it_was
        elif field == "properties" and wrong == "object":
            assert isinstance(said, NodeNotified)
        else:
            assert isinstance(said, UnreadableNotification)
            assert said.reason.startswith(f"{field} is ")
            assert said.at_us > 0
            assert str(said.node) == ("None" if field == "uuid" else node_id)


def test_there_are_47_fields_in_every_node() -> None:
    assert len(COMMON_FIELDS) == 47
    assert set(USED) <= set(COMMON_FIELDS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uuid", "node-1"),
        ("instance_uuid", "vm-1"),
        ("maintenance", "false"),
        ("maintenance", 0),
        ("retired", "no"),
        ("traits", "CUSTOM_GPU"),
        ("traits", ["CUSTOM_GPU", None]),
        ("traits", [f"CUSTOM_{number}" for number in range(401)]),
        ("provision_state", False),
        ("resource_class", "g" * 256),
        ("name", "a\0b"),
        ("last_error", "a\0b"),
        ("provision_updated_at", "10000-01-01T00:00:00Z"),
        ("provision_updated_at", "2026-11-20T07:31:22"),
        ("provision_updated_at", "2026-02-30T07:31:22Z"),
    ],
)
def test_a_value_that_a_field_may_not_have_is_named(field: str, value: object) -> None:
    said = unread(an_update(**{field: value}))

    assert said.reason.startswith(f"{field} is ")
    assert repr(value)[:40] in said.reason or field == "traits"


@pytest.mark.parametrize("field", NEEDED)
def test_half_a_node_is_refused_by_the_name_of_what_it_lacks(field: str) -> None:
    notification = captured("baremetal.node.update.end")
    del data_of(notification)[field]

    assert unread(body_of(notification)).reason == f"{field} is missing"


def test_a_node_needs_no_more_than_what_decides() -> None:
    notification = captured("baremetal.node.update.end")
    data = data_of(notification)
    for field in data.keys() - set(NEEDED):
        del data[field]

    assert told(body_of(notification)).node.traits == tuple(data["traits"])


@pytest.mark.parametrize(("version", "is_read"), [("1.0", True), ("1.99", True), ("2.0", False), ("", False)])
def test_a_payload_of_another_major_version_is_refused_and_names_its_node(
    version: str,
    is_read: bool,  # noqa: FBT001
) -> None:
    for event_type in ("node.update.end", "node.update.error", "allocation.delete.end"):
        notification = captured(f"baremetal.{event_type}")
        notification["payload"]["ironic_object.version"] = version
        data_of(notification)["new_in_a_later_version"] = {"a": 1}

        said = read(body_of(notification))

        assert isinstance(said, UnreadableNotification) is not is_read
        if isinstance(said, UnreadableNotification):
            assert said.reason.startswith(f"payload.ironic_object.version is {version!r}")
            assert (said.node is None) == event_type.startswith("allocation")


def test_a_later_major_version_is_named_before_its_fields() -> None:
    notification = captured("baremetal.node.update.end")
    notification["payload"]["ironic_object.version"] = "2.0"
    data_of(notification)["maintenance"] = "off"

    assert unread(body_of(notification)).reason.startswith("payload.ironic_object.version is ")


@pytest.mark.parametrize(
    ("event_type", "is_known"),
    [
        ("baremetal.node.console_set.end", True),
        ("baremetal.port.create.end", True),
        ("baremetal.portgroup.update.error", True),
        ("baremetal.chassis.delete.end", True),
        ("baremetal.deploytemplate.create.start", True),
        ("baremetal.node.update.success", False),
        ("baremetal.node.sings.end", False),
        ("compute.instance.create.end", False),
        ("x" * 5_000, False),
    ],
)
def test_other_event_types_are_ignored_whatever_they_carry(event_type: str, is_known: bool) -> None:  # noqa: FBT001
    notification = captured("baremetal.node.update.end")
    notification |= {"event_type": event_type, "payload": ["anything"]}

    said = read(body_of(notification))

    assert isinstance(said, Ignored)
    assert said.is_known == is_known
    assert len(said.reason) < 200


@pytest.mark.parametrize(
    ("timestamp", "at_us"),
    [
        ("2026-11-20 07:31:22.068874", 1_795_159_882_068_874),
        ("2026-11-20 07:31:22", 1_795_159_882_000_000),
        ("2026-11-20T07:31:22.068874Z", 1_795_159_882_068_874),
        ("2026-11-20T08:31:22.068874+01:00", 1_795_159_882_068_874),
    ],
)
def test_a_timestamp_without_a_zone_is_utc(timestamp: str, at_us: int) -> None:
    assert told(body_of(captured("baremetal.node.update.end") | {"timestamp": timestamp})).at_us == at_us


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", "yesterday"),
        ("timestamp", 1_795_159_882),
        ("timestamp", "1969-12-31 23:59:59"),
        ("timestamp", "0001-01-01T00:00:00+14:00"),
        ("timestamp", "12026-11-20 07:31:22"),
        ("timestamp", "2026-11-20 23:59:60"),
        ("event_type", None),
        ("event_type", ["baremetal.node.update.end"]),
        ("publisher_id", 5),
        ("publisher_id", "p" * 256),
        ("payload", 5),
        ("payload", {}),
        ("payload", {"ironic_object.version": 1.18, "ironic_object.data": {}}),
        ("payload", {"ironic_object.version": "1.18"}),
        ("payload", {"ironic_object.version": "1.18", "ironic_object.data": "{}"}),
    ],
)
def test_what_is_wrong_outside_the_node_is_named(field: str, value: object) -> None:
    said = unread(body_of(captured("baremetal.node.update.end") | {field: value}))

    assert field in said.reason.partition(" is ")[0] or field == "payload"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "not a notification"),
        (b"no JSON", "not a notification"),
        (b"[]", "not a notification"),
        (b"{}", "event_type is missing"),
        (b"null", "not a notification"),
        (b'{"oslo.version":"2.0","oslo.message":"no JSON"}', "not a notification"),
        (b'{"oslo.version":"2.0","oslo.message":{"event_type":"x"}}', "oslo.message is "),
        (b'{"oslo.version":"3.0","oslo.message":"{}"}', "oslo.version is '3.0'"),
        (b'{"oslo.version":2,"oslo.message":"{}"}', "oslo.version is 2"),
        (b'{"event_type":"\xff\xfe"}', "not a notification"),
        (b'{"event_type":"\\ud800"}', "not a notification"),
        (b'{"event_type":' + b"[" * 200_000, "nested too deep"),
        (b'{"event_type":1e999}', "event_type"),
    ],
)
def test_a_body_that_is_no_notification_is_unreadable_with_a_reason(body: bytes, part: str) -> None:
    assert part in unread(body).reason


def test_what_is_nested_too_deep_is_unreadable_also_inside_the_envelope() -> None:
    deep = an_update().replace(b'"extra": {}', b'"extra": ' + b"[" * 5_000 + b"]" * 5_000)

    for body in (deep, json.dumps({"oslo.version": "2.0", "oslo.message": deep.decode()}).encode()):
        assert unread(body).reason == "nested too deep to be read"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SOME_BODIES = tuple(bodies_of(scenario)[-1] for scenario in SCENARIOS)
EXAMPLES = tuple(
    captured(f"baremetal.{name}")
    for name in ("node.provision_set.end", "node.delete.error", "allocation.delete.end")
)


def _as_plain(body: bytes) -> bytes:
    return body_of(notification_in(body))


@BOUNDED
@given(st.binary(max_size=200))
def test_any_bytes_are_read_into_a_value(body: bytes) -> None:
    assert isinstance(read(body), UnreadableNotification | Ignored)


@BOUNDED
@given(
    st.sampled_from(SOME_BODIES),
    st.sampled_from((bytes, _as_plain)),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4), st.integers(0, 6)), min_size=1, max_size=4),
)
def test_a_captured_message_with_broken_bytes_is_read_into_a_value(
    body: bytes, form: Callable[[bytes], bytes], breaks: list[tuple[float, bytes, int]]
) -> None:
    broken = form(body)
    for place, inserted, cut in breaks:
        at = int(place * len(broken))
        broken = broken[:at] + inserted + broken[at + cut :]
    assert isinstance(read(broken), Notification | Ignored)


@BOUNDED
@given(st.sampled_from(EXAMPLES), st.data())
def test_a_captured_message_with_any_value_in_any_field_is_read_into_a_value(
    example: dict[str, Any], drawn: st.DataObject
) -> None:
    notification = json.loads(json.dumps(example))
    levels = (notification, notification["payload"], data_of(notification))
    level = drawn.draw(st.sampled_from(levels))
    level[drawn.draw(st.sampled_from(sorted(level)))] = drawn.draw(JSON_VALUES)

    assert isinstance(read(body_of(notification)), Notification | Ignored)


def node_in(said: Notification | Ignored) -> ProviderId | None:
    match said:
        case NodeNotified():
            return said.node.id
        case NodeDoubted():
            return said.id
        case AllocationNotified() | UnreadableNotification():
            return said.node
        case Ignored():
            return None


def rows_after(scenario: str, rules: OrderingRules) -> dict[str, list[NodeRow]]:
    """The rows of every node of a scenario, one after each message of it."""
    rows: dict[str, list[NodeRow]] = {}
    for body in bodies_of(scenario):
        said = read(body)
        assert not isinstance(said, UnreadableNotification)
        node = node_in(said)
        if node is None or isinstance(said, Ignored):
            continue
        steps = rows.setdefault(str(node)[:8], [NodeRow(id=node)])
        steps.append(after_notification(steps[-1], said, rules))
    return rows


# The node's provision state at the end, whether it is offered after each of its messages that count, by newest word.
ENDS: dict[str, dict[str, tuple[str | None, str]]] = {
    "01_create_without_resource_class": {"e5aacfa6": ("enroll", "-")},
    "02_create_with_resource_class": {"a547c9a4": ("enroll", "-")},
    "05_manage_from_enroll": {"6576a940": ("manageable", "--")},
    "06_inspect": {"1b50218f": ("manageable", "--")},
    "07_provide_cleaning_available": {"5876c672": ("available", "-+")},
    "08_maintenance_on_off_available": {"721bdd09": ("available", "--++")},
    "09_maintenance_by_patch": {"f8ce52b6": ("available", "-+")},
    "12_power": {"5c97e324": ("available", "++++")},
    "13_deploy_as_nova": {"46a95f4b": ("active", "----")},
    "16_undeploy_cleaning_available": {"4446c05e": ("available", "--+")},
    "17_undeploy_without_cleaning": {"b87416f8": ("available", "--+")},
    "20_clean_failed_step_error": {"2d534e9d": ("manageable", "----")},
    "26_manage_from_available": {"20aafeb9": ("manageable", "-")},
    "27_group_shard_owner_lessee_misc": {"7464717d": ("available", "+++++++")},
    "29_allocation": {"7f346407": (None, "-")},
    "30_node_delete": {
        "1549132d": ("enroll", "-"),
        "2e7a2d1a": ("manageable", "----"),
        "dab9ec3f": ("available", "----+-"),
    },
    "31_node_delete_refused_then_in_maintenance": {"f32107bf": ("active", "---")},
    "32_bad_requests": {"fa609f28": (None, "--")},
    "37_full_lifecycle": {"dad49086": ("available", "------+-+-----+-")},
    "41_clean_wait_agent_never_calls_timeout": {"c77f0593": ("manageable", "-------")},
    "70_manage_with_unreachable_bmc": {"a6188874": ("enroll", "---")},
    "71_out_of_band_power_change_and_silent_bmc": {"fc3a3398": ("available", "+-+")},
}
DELETED = {"1549132d", "2e7a2d1a", "dab9ec3f", "f32107bf", "dad49086"}


@pytest.mark.parametrize("scenario", ENDS)
def test_a_captured_scenario_offers_the_node_exactly_when_it_is_free(scenario: str) -> None:
    for name, steps in rows_after(scenario, WITHOUT_REST).items():
        end = steps[-1]
        state, offered = ENDS[scenario][name]
        assert (end.node.provision_state if end.node else None) == state
        assert "".join("-+"[is_offered(row)] for row in steps[1:]) == offered
        assert end.is_deleted == (name in DELETED)
        assert end.doubts == ()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_rest_no_captured_message_offers_more_than_without(scenario: str) -> None:
    with_rest, without = rows_after(scenario, WITH_REST), rows_after(scenario, WITHOUT_REST)
    for name, steps in with_rest.items():
        for doubting, believing in zip(steps[1:], without[name][1:], strict=True):
            assert is_offered(believing) or not is_offered(doubting)
            assert doubting.node == believing.node
        assert steps[-1].doubts or without[name][1].is_deleted


def test_the_scenarios_are_all_there() -> None:
    assert set(SCENARIOS) == set(ENDS) | {"90_twenty_nodes_zero_delay_lost_end_events"}


def test_twenty_nodes_whose_ends_were_lost_are_all_deleted_at_the_end() -> None:
    rows = rows_after("90_twenty_nodes_zero_delay_lost_end_events", WITHOUT_REST)

    assert len(rows) == 20
    for steps in rows.values():
        assert steps[-1].is_deleted
        assert not is_offered(steps[-1])
        for row in steps[1:]:
            assert row.node is not None
            is_free = row.node.provision_state == "available" and not row.node.maintenance
            assert is_offered(row) == (is_free and row.node.instance_uuid is None and not row.is_deleted)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("rules", [WITH_REST, WITHOUT_REST], ids=["with REST", "without"])
def test_a_captured_message_that_comes_twice_gives_the_very_same_row(
    scenario: str, rules: OrderingRules
) -> None:
    for steps in rows_after(scenario, rules).values():
        row = steps[0]
        for body in bodies_of(scenario):
            said = read(body)
            if isinstance(said, NodeNotified) and said.node.id == row.id:
                row = after_notification(row, said, rules)
                assert after_notification(row, said, rules) is row
