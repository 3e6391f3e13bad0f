"""The two stages: `make test` runs all tests but those below, and `make proof` runs all.

An entry is how the id of tests begins: a folder, a file, a test, or a test with its parameters. Where only some parameters of a test are
long, they have the marker `proof` in its file: the layouts of stories (layouts.py), the seeds of the simulation (test_simulation.py), and others.
`make test` runs the first story on servers of each file. These files, and those in BY_TURNS, take turns: it runs a third of them at each
commit. Which third it is follows from the tree of git, so another commit runs others.
"""

import subprocess
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

# What these need is only installed by `make proof`.
OF_SOFTWARE = {
    "QEMU": (
        "libvirt/test_libvirt_adoption.py",
        "libvirt/test_libvirt_builds.py",
        "libvirt/test_libvirt_demo.py",
        "libvirt/test_libvirt_domains.py",
        "libvirt/test_libvirt_kill_sweep.py",
        "libvirt/test_libvirt_kills.py",
        "libvirt/test_libvirt_mediated.py",
        "libvirt/test_libvirt_moves.py",
        "libvirt/test_libvirt_page.py",
        "libvirt/test_libvirt_shapes.py",
        "libvirt/test_libvirt_sharing.py",
        "libvirt/test_libvirt_unit.py::test_a_guest_of_a_hypervisor",
        "test_benchmarks.py::test_real_guests_are_measured_and_removed",
    ),
    "MariaDB": ("stories/moor/test_moor_import_mariadb.py",),
    "Keystone": ("api/test_real_keystone.py",),
    "Prometheus": (
        "stories/moor/test_moor_prometheus.py::test_each_query",
        "stories/moor/test_moor_prometheus.py::test_the_alerts",
    ),
    "systemd": ("deploy/test_systemd_units.py",),
}
# The long ones, by what sees the same sooner.
LONG = {
    "a few of them are in KEPT": (
        "adversity/",
        "conformance/",
        "deploy/",
        "simulation/test_planted.py::test_the_trace_of_a_planted_bug_is_shrunk",
        "stories/moor/test_dashboard_in_a_browser.py",
        "stories/metal/test_hostile_ironic.py::test_no_wrong_answer_or_notification_ends_a_daemon",
        "stories/metal/test_ring.py::test_whatever_happens_no_two_daemons_act_on_a_node",
        "stories/moor/test_moor_demo.py",
        "stories/moor/test_printed_commands.py::test_the_commands_for_one_machine",
        "stories/moor/test_tutorials.py",
    ),
    "rules: the steps of a move": ("unit/test_moves_page.py",),
    "the pages' commands, one by one": (
        "stories/moor/test_client_page.py::test_the_programs_do_what_the_page_says",
        "stories/moor/test_printed_commands.py::test_a_switch_step_by_step",
        "stories/moor/test_printed_commands.py::test_the_commands_for_servers[a broker for island",
        "stories/moor/test_printed_commands.py::test_the_loads",
    ),
    "their unit tests and shorter stories": (
        "api/test_auth.py::test_a_flood_holds_up_no_right_login",
        "api/test_costly_questions.py::test_beside_any_question_others_are_answered",
        "api/test_costly_questions.py::test_of_more_long_searches_than_may_wait",
        "contracts/test_placement_store_books.py::test_hosts_may_register_while_the_numbers_are_recounted",
        "contracts/test_rabbitmq_only.py::test_a_cell_binds_exchanges_only_for_its_own_answers",
        "contracts/test_rabbitmq_only.py::test_a_connection_whose_channels_are_all_open",
        "contracts/test_rabbitmq_only.py::test_the_queue_of_an_application_that_does_not_read",
        "contracts/test_scheduler_store_orders.py::test_all_pages_together_have_what_is_asked_for_in_its_order",
        "libvirt/test_libvirt_alternates.py::test_only_its_project_has_a_saved_disk",
        "properties/test_scheduler_batches.py::test_instances_that_move_together",
        "simulation/test_bounds.py::test_a_seed_that_does_not_end",
        "simulation/test_simulation.py::test_a_seed_is_the_same_byte_for_byte",
        "properties/test_guest_worlds.py::test_each_of_several_guests_fits_exactly_if_brute_force_finds_a_placement[cells-4",
        "stories/authority/test_foreign_values.py::test_no_message_with_a_foreign_value_changes_anything_of_anothers[rabbitmq",
        "stories/moor/test_package.py::test_the_examples_are_checked",
        "stories/cells/test_cells_on_servers.py::test_cells_with_their_own_brokers_and_databases_are_cut_off",
        "stories/cells/test_compute_check.py::test_a_compute_that_breaks_one_rule_is_told_this_rule_alone[restart between",
        "stories/cells/test_compute_check.py::test_a_compute_that_dies_is_told_once",
        "stories/cells/test_compute_check.py::test_its_lines_and_its_json_tell_the_same",
        "stories/cells/test_compute_check.py::test_the_simulated_compute_with_a_store",
        "stories/metal/test_deploys_attacked.py::test_while_one_cell_s_broker_is_away",
        "stories/metal/test_restored_ironic.py::test_daemons_together",
        "stories/moor/test_moor_applications.py::test_an_application_has_the_rights_of_its_own_projects",
        "stories/moor/test_moor_applications.py::test_each_command_of_an_application",
        "stories/moor/test_moor_bare_metal.py::test_a_cloud_has_nodes_that_daemons_share",
        "stories/moor/test_moor_bare_metal.py::test_an_instance_that_only_ironic_has",
        "stories/moor/test_moor_bare_metal.py::test_deployed_nodes_are_adopted_many_at_once",
        "stories/moor/test_moor_command.py::test_users_have_their_rights",
        "stories/moor/test_moor_people.py::test_a_person_has_moves_wait_for_room",
        "stories/moor/test_moor_up.py::test_a_disk_that_is_full_when_it_stops",
        "stories/moor/test_moor_import.py::test_interrupted_ten_times",
        "stories/moor/test_moor_import.py::test_what_belongs_to_no_host",
        "stories/moor/test_moor_load.py",
        "stories/moor/test_moor_metrics.py::test_what_happens_to_instances_and_hosts_is_counted",
        "stories/moves/test_reshapes.py",
        "stories/nova/test_nova_audited.py::test_the_command_frees_what_nova_never_knew",
        "stories/nova/test_nova_shadow.py::test_the_same_host_as_novas",
        "stories/test_bugs_set_aside.py::test_a_node_at_which_daemons_fail",
        "test_benchmarks.py::test_a_quick_run",
    ),
}
# Of the long ones these run in `make test`, so that each kind has something; those of BY_TURNS by turns.
KEPT = {
    "adversity": (
        "adversity/test_authority.py",
        "adversity/test_claims_at_once.py",
        "adversity/test_hostile_messages.py::test_hostile_messages_are_answered_or_buried_and_the_next_instance_is_built[embedded-build.",
        "adversity/test_hostile_messages.py::test_hostile_messages_are_answered_or_buried_and_the_next_instance_is_built[embedded-claim",
        "adversity/test_hostile_parcels.py::test_whatever_is_said_on_a_feed",
        "adversity/test_killed_workers.py::test_every_kind_of_worker_is_killed_and_the_servers_restarted_in_the_middle_of_boots[600]",
        "adversity/test_late_reader.py",
    ),
    "conformance": (
        "conformance/test_gabbi.py::test_every_step_passes[postgresql-allocations",
        "conformance/test_gabbi.py::test_the_suite_is_whole",
        "conformance/test_listed_differences.py",
    ),
    "deploy": ("deploy/test_container_files.py",),
    "bare metal": (
        "stories/metal/test_hostile_ironic.py::test_no_wrong_answer_or_notification_ends_a_daemon_and_everything_recovers[1]",
        "stories/metal/test_ring.py::test_whatever_happens_no_two_daemons_act_on_a_node_and_in_the_end_each_node_has_an_owner[0]",
        "stories/metal/test_ring.py::test_whatever_happens_no_two_daemons_act_on_a_node_and_in_the_end_each_node_has_an_owner[1]",
        "stories/metal/test_ring.py::test_whatever_happens_no_two_daemons_act_on_a_node_and_in_the_end_each_node_has_an_owner[2]",
    ),
    "commands and their pages": (
        "stories/moor/test_moor_demo.py::test_the_demo_on_real_servers",
        "stories/moor/test_moor_load.py::test_mistakes_are_reported_in_one_line",
        "stories/moor/test_moor_load.py::test_the_embedded_load_builds_measures_and_audits",
        "stories/moor/test_printed_commands.py::test_the_commands_for_one_machine[docs/running.md]",
        "stories/moor/test_tutorials.py::test_every_tutorial_is_followed_by_a_test",
    ),
}


NEEDS, IS_LONG, IS_KEPT = (
    tuple(each for some in table.values() for each in some) for table in (OF_SOFTWARE, LONG, KEPT)
)
NO_LAYOUT = SimpleNamespace(params={})
# The stage of a story on servers that runs embedded as well.
REAL = "real"
# Where tests with a real broker are. A process that runs no others imports nothing else.
WITH_BROKERS = ("adversity", "contracts", "deploy", "libvirt", "stories")
# Files in these folders run by turns in `make test`, and so do stories on servers: one of so many parts at each commit.
BY_TURNS = ("adversity", "conformance", "properties")
PARTS = 3
TESTS = Path(__file__).parent


def entries() -> Iterator[str]:
    yield from (*NEEDS, *IS_LONG, *IS_KEPT)


def second_on_servers(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The stories that run in memory as well, but for the first of each file: on servers only `make proof` runs them. What the rooms
    ask of a broker and of a database has its contracts.
    """
    firsts: dict[object, str] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("rabbitmq") is None:
            continue
        if not {*item.path.parts} & {*WITH_BROKERS}:
            raise pytest.UsageError(
                f"{item.nodeid} has a broker: add its folder to WITH_BROKERS in tests/stages.py"
            )
        params = getattr(item, "callspec", NO_LAYOUT).params
        is_story = "stories" in item.path.parts and ("bus" in params or REAL in params.values())
        is_run = is_story and item.get_closest_marker("proof") is None
        if is_run and firsts.setdefault(item.path, item.originalname) != item.originalname:
            yield item


def of_other_commits(items: Iterable[pytest.Item], tree: str) -> Iterator[pytest.Item]:
    """The tests by turns whose turn is at other trees of git. Each third of the files is as large as the others."""
    there = {each.relative_to(TESTS): number for number, each in enumerate(sorted(TESTS.rglob("test_*.py")))}
    turn = sha256(tree.encode()).digest()[0] % PARTS
    for item in items:
        path = item.path.relative_to(TESTS)
        on_servers = path.parts[0] == "stories" and item.get_closest_marker("rabbitmq") is not None
        if (on_servers or path.parts[0] in BY_TURNS) and there[path] % PARTS != turn:
            yield item


def tree_of_git() -> str:
    """The tree that is checked out; empty if git does not know this folder."""
    command = ("git", "rev-parse", "HEAD^{tree}")
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False).stdout.strip()


def is_for_proof(nodeid: str) -> bool:
    """Does only `make proof` run this test?"""
    name = nodeid.removeprefix("tests/")
    return name.startswith(NEEDS) or (name.startswith(IS_LONG) and not name.startswith(IS_KEPT))


def has_none_of(path: str, markers: str) -> bool:
    """Is this a folder or a file of `tests` in which no test can have what `-m` says? Importing all costs seconds."""
    if markers.startswith("rabbitmq") and path.partition("/")[0] not in (".", *WITH_BROKERS):
        return True
    return (
        "not proof" in markers
        and path.endswith(".py")
        and is_for_proof(path)
        and not any(each.startswith(path) for each in IS_KEPT)
    )
