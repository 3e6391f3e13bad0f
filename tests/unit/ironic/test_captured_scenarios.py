"""Each captured scenario, replayed word by word: when is the node offered, and what is known of it at the end?"""

import pytest

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
from ironic_sync.core.offers import offer_of
from ironic_sync.core.ordering import OrderingRules, after_notification
from ironic_sync.core.rows import NodeRow
from tests.unit.ironic.captured import SCENARIOS, bodies_of
from tests.unit.ironic.node_rows import WITH_REST, WITHOUT_REST, is_offered


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


def test_the_fields_that_a_scenario_changes_are_on_its_row() -> None:
    row = rows_after("27_group_shard_owner_lessee_misc", WITHOUT_REST)["7464717d"][-1]

    assert row.node is not None
    assert (row.node.conductor_group, row.node.owner, row.node.lessee) == ("rack1", "project-a", None)
    assert offer_of(row, frozenset()).resource_class == "CUSTOM_BAREMETAL"
