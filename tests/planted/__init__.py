"""Planted bugs, in one table: they judge the tests. Each replaces one real function by one that does less, and its name says what
it breaks for users.

`pytest --planted NAME` runs any tests with the bug in place, also in the processes that they start. `python -m tests.planted` says
which kind of test sees which bug (matrix.py). A bug whose function is gone is an error, and not a bug that is seen.
"""

from contextlib import ExitStack

from tests.planted import (
    access_bugs,
    admin_write_bugs,
    audit_bugs,
    bus_bugs,
    cell_bugs,
    claim_bugs,
    client_bugs,
    compute_bugs,
    conductor_bugs,
    conductor_store_bugs,
    demand_bugs,
    flavor_bugs,
    group_bugs,
    guest_bugs,
    host_bugs,
    http_api_bugs,
    import_bugs,
    ironic_http_bugs,
    kit_bugs,
    libvirt_bugs,
    move_bugs,
    node_bugs,
    nova_bugs,
    owner_bugs,
    placement_store_bugs,
    power_bugs,
    quota_bugs,
    rabbit_bugs,
    rule_bugs,
    scheduler_bugs,
    scheduler_store_bugs,
    shape_bugs,
    socket_bugs,
    sql_bugs,
    waiting_bugs,
)
from tests.planted.replacing import PlantedBug, noting

# Those that the simulation finds.
SIMULATED: dict[str, PlantedBug] = {
    "a batch acknowledged before its commit": bus_bugs.acknowledge_before_commit,
    "a second release frees the amounts again": claim_bugs.release_twice,
    "claims granted without a capacity check": claim_bugs.claim_without_capacity_check,
    "a claim granted after its own release": claim_bugs.claim_after_its_own_release,
    "a redelivered order carried out again": conductor_bugs.redelivered_order_carried_out_again,
    "a conductor calls up": conductor_bugs.conductor_calls_up,
    "a removal forgotten before its placement arrives": conductor_bugs.removal_forgotten,
    "late success of attempt 1 accepted": conductor_bugs.late_success_accepted,
    "unconfirmed messages not loaded with their row": conductor_bugs.unconfirmed_messages_not_loaded,
    "a gap in the feed ignored": scheduler_bugs.gap_in_the_feed_ignored,
    "a provider's generation not checked": admin_write_bugs.generation_not_checked,
    "a consumer's generation not checked": admin_write_bugs.consumer_generation_not_checked,
    "the second consumer written although the first is refused": admin_write_bugs.second_consumer_written,
    "allocations written that do not fit": admin_write_bugs.fit_not_checked,
    "used not updated by an administrator's write": admin_write_bugs.used_not_updated,
    "a reshape without its allocations": admin_write_bugs.reshape_without_allocations,
    "a reshape applied though its allocations are refused": admin_write_bugs.reshape_goes_on_when_refused,
    "an inventory in use removed by a reshape": admin_write_bugs.inventory_in_use_reshaped_away,
    "descendants keep their old root": admin_write_bugs.descendants_keep_their_root,
    "a provider deleted above its children": admin_write_bugs.deleted_above_its_children,
    "a provider deleted in use": admin_write_bugs.deleted_in_use,
    "traits do not change the shape": admin_write_bugs.traits_do_not_change_the_shape,
    "a view keeps deleted providers": admin_write_bugs.view_keeps_deleted_providers,
    "a batch acknowledged without its confirms": bus_bugs.acknowledged_without_confirms,
    "messages confirmed before they are sent": bus_bugs.messages_confirmed_before_they_are_sent,
    "a refused parcel counts as confirmed": bus_bugs.refused_counts_as_confirmed,
    "an unroutable order counts as delivered": bus_bugs.unroutable_counts_as_delivered,
    "attempts are not counted": bus_bugs.attempts_not_counted,
    "half of a redelivered parcel is lost": bus_bugs.half_a_parcel_lost,
    "a dead letter without its reason": bus_bugs.dead_letter_without_reason,
    "a late answer taken for another one": bus_bugs.late_answer_taken_for_another,
    "the sender taken from a header": bus_bugs.sender_taken_from_header,
    "any routing key accepted": bus_bugs.any_key_accepted,
    "any sender accepted": bus_bugs.any_sender_accepted,
    "the ratio applied to the reserve": claim_bugs.ratio_applied_to_the_reserve,
    "the ratio ignored": claim_bugs.ratio_ignored,
    "the reserve not subtracted": claim_bugs.reserve_not_subtracted,
    "step_size not checked": claim_bugs.step_not_checked,
    "min_unit not checked": claim_bugs.min_unit_not_checked,
    "a claim older than the horizon granted": claim_bugs.horizon_not_checked,
    "a swap keeps what was held of a pool": claim_bugs.pool_kept_by_a_swap,
    "the limit of a host not checked": claim_bugs.limit_of_a_host_not_checked,
    "nothing released before a dead letter": bus_bugs.nothing_released_before_dead_letter,
    "a changed shape granted": claim_bugs.changed_shape_granted,
    "a consumer of another cell released": claim_bugs.foreign_consumer_released,
    "trees locked before consumers": claim_bugs.trees_locked_before_consumers,
    "a part of a claim committed": claim_bugs.part_of_a_claim_committed,
    "a lease without end": conductor_bugs.lease_without_end,
    "a silent host treated as failed": conductor_bugs.silent_host_treated_as_failed,
    "max_unit not checked": claim_bugs.max_unit_not_checked,
    "hosts that failed chosen again": scheduler_bugs.failed_hosts_chosen_again,
    "choices never dropped": scheduler_bugs.choices_never_dropped,
    "an event of another cell believed": scheduler_bugs.foreign_event_believed,
    "no outbox notes written": scheduler_bugs.no_notes_written,
    "a timer's notes confirmed before they are sent": scheduler_bugs.notes_confirmed_before_sending,
    "changes of usage ignored": scheduler_bugs.usage_ignored,
    "a cell that is down not avoided": cell_bugs.cell_not_avoided,
    "a row forgotten when its conductor dies": cell_bugs.rows_of_others_not_taken,
    "a wake-up lost": waiting_bugs.wake_up_lost,
    "the deadline of what waits forgotten": waiting_bugs.deadline_forgotten,
    "the policy of a group not judged": group_bugs.policy_not_judged,
    "a swap not judged by its group": group_bugs.swap_not_judged,
    "an ended attempt claims again": rule_bugs.ended_attempt_claims,
    "an answered order kept": rule_bugs.answered_orders_kept,
    "a delete forgotten by its request": rule_bugs.delete_forgotten_by_its_request,
    "the cleanups of a silent host ordered once": rule_bugs.no_reminder,
}

# Bugs that only the seeds of one world can show (`WORLDS` in drawing.py).
OF_WORLDS: dict[str, dict[str, PlantedBug]] = {
    "host modes": {
        "the cleanups of a dead host kept": host_bugs.cleanups_of_the_dead_kept,
        "the silence of hosts not noticed": host_bugs.silence_not_noticed,
        "a returned host not asked what it has": host_bugs.returned_host_not_asked,
        "a draining alternate taken": host_bugs.draining_alternate_taken,
        "a mode noted as told and not sent": host_bugs.word_noted_and_not_sent,
    },
    "demands": {
        "two groups get one provider though they are isolated": demand_bugs.isolate_ignored,
        "a subtree ignored": demand_bugs.same_subtree_ignored,
        "the traits of a group ignored": demand_bugs.traits_of_groups_ignored,
        "an alternate's second way is its first one": demand_bugs.first_way_told_twice,
        "a host is its own alternate": demand_bugs.own_host_as_alternate,
        "a host that has failed tried again": conductor_bugs.failed_host_tried_again,
        "a host keeps its first zone": demand_bugs.first_zone_kept,
        "changed metadata of an aggregate ignored": demand_bugs.changed_metadata_ignored,
        "a disabled host chosen": demand_bugs.disabled_host_chosen,
        "failed builds ignored": demand_bugs.failed_builds_ignored,
        "a port's network spelled otherwise": demand_bugs.network_spelled_otherwise,
    },
    "guests": {
        "a page size ignored": guest_bugs.page_size_ignored,
        "a virtual function given twice": guest_bugs.virtual_function_given_twice,
        "a pinned processor given twice": guest_bugs.pinned_processor_given_twice,
    },
    "feeds": {
        "a new feed queue raises no doubt": scheduler_bugs.new_feed_queue_not_doubted,
    },
    "flavors": {
        "the worst flavor comes first": flavor_bugs.worst_flavor_first,
        "a share of another flavor than the order": flavor_bugs.share_of_another_flavor,
        "the flavor of an alternate forgotten": flavor_bugs.flavor_of_alternate_forgotten,
        "the flavor of a further alternate read by its host": (
            flavor_bugs.flavor_of_further_alternate_read_by_its_host
        ),
    },
    "power": {
        "an order to stop is lost": power_bugs.order_to_stop_lost,
        "a stopped instance runs where it arrives": power_bugs.stopped_instance_runs_where_it_arrives,
    },
    "quotas": {
        "the quota of a project not judged": quota_bugs.quota_not_judged,
        "each claim of a batch judged by the same quota": quota_bugs.judged_as_before_the_batch,
        "a larger instance not judged by its quota": quota_bugs.larger_by_a_swap,
        "a smaller instance counts its new size at once": quota_bugs.old_size_given_away,
    },
    "shapes": {
        "an allocation left behind by a reshape": shape_bugs.allocation_left_behind,
    },
    "moves of groups": {
        "a foreign heir accepted": owner_bugs.foreign_heir_accepted,
        "a tombstone of another owner binds": owner_bugs.foreign_tombstone_binds,
        "the group of another project joined": owner_bugs.foreign_group_joined,
        "a name in two cells not told": owner_bugs.shared_name_not_told,
        "members that leave their host still bind": group_bugs.members_that_leave_still_bind,
        "a member that leaves goes anywhere": group_bugs.member_that_leaves_not_bound,
        "a split group not told": group_bugs.split_not_told,
    },
    "moves": {
        "a migration holds the whole share": move_bugs.heir_holds_all,
        "a confirmed move forgets its migration": move_bugs.heir_forgotten,
        "a move comes back and leaves its destination as it is": move_bugs.destination_left_as_it_is,
        "a delete while it moves releases the source early": move_bugs.source_released_early,
        "a way back without its migration": move_bugs.migration_not_returned,
        "received while the source runs it": move_bugs.received_while_it_runs,
        "a late word of the source believed": move_bugs.late_word_of_the_source_believed,
        "an evacuated host released at once": move_bugs.evacuated_host_released_at_once,
        "an instance in error released though its host has it": move_bugs.broken_instance_released,
        "an evacuation builds with the first image": move_bugs.evacuated_with_first_image,
        "an earlier rebuild is obeyed after a later one": move_bugs.earlier_rebuild_obeyed,
        "an offloaded instance released before it is destroyed": move_bugs.offloaded_early,
        "unshelved without a claim": move_bugs.unshelved_without_claim,
        "the flavor of a resize forgotten": move_bugs.new_flavor_forgotten,
        "a silent destination gives its share back": move_bugs.silent_destination_released,
        "a return forgets the attempt of its host": move_bugs.attempt_of_host_forgotten,
        "a resize drops memory": move_bugs.memory_of_resize_dropped,
        "a row keeps the size of before a confirmed resize": move_bugs.confirmed_size_not_kept,
        "the way back judged like any swap": rule_bugs.way_back_judged,
    },
    "moves that wait": {
        "a waiting move passed over": waiting_bugs.waiting_move_passed_over,
        "a wait outlives its abort": waiting_bugs.wait_outlives_its_abort,
        "the priority of what waits ignored": waiting_bugs.priority_ignored,
        "an evacuation goes on although its source is up again": move_bugs.source_that_is_up_evacuated,
        "a move that lost its room does not wait again": waiting_bugs.lost_room_ends_the_move,
        "waiting moves forgotten at a restart": waiting_bugs.waiting_moves_not_read,
    },
}
for _bugs in OF_WORLDS.values():
    SIMULATED |= _bugs

# Bugs that only bare-metal seeds can show.
OF_NODES: dict[str, PlantedBug] = {
    "the epoch of a report not checked": node_bugs.epoch_not_checked,
    "a stale event wins": node_bugs.stale_event_wins,
    "a node given with its instance": node_bugs.nodes_with_instances_given,
    "a provider deleted on a rebalance": node_bugs.provider_deleted_on_rebalance,
    "a takeover without reading": node_bugs.takeover_without_reading,
    "a started change counts as done": node_bugs.start_counts_as_done,
    "a claim released before its instance is off the node": node_bugs.claim_released_early,
    "the active state before a rebuild counts as its success": node_bugs.active_before_counts,
    "the margin of a lease ignored": node_bugs.lease_margin_ignored,
    "an answer applied over a later notification": node_bugs.outdated_answer_applied,
    "a step without effect repeated without end": node_bugs.repeated_without_end,
    "a port assumed to be attached": node_bugs.port_assumed_attached,
    "a repeated report accepted": rule_bugs.repeated_report_accepted,
    "the instance of a deleted node stays active": node_bugs.lost_instance_not_told,
    "a lost notification found only by comparing all nodes": node_bugs.changed_nodes_not_looked_for,
    "a row mended out of date": audit_bugs.late_row_mended,
}
SIMULATED |= OF_NODES

BUGS: dict[str, PlantedBug] = {**SIMULATED}
for _area in (
    admin_write_bugs,
    cell_bugs,
    http_api_bugs,
    placement_store_bugs,
    scheduler_store_bugs,
    conductor_store_bugs,
    rabbit_bugs,
    sql_bugs,
    socket_bugs,
    client_bugs,
    access_bugs,
    compute_bugs,
    libvirt_bugs,
    ironic_http_bugs,
    nova_bugs,
    import_bugs,
    kit_bugs,
):
    assert not BUGS.keys() & _area.BUGS.keys()
    BUGS |= _area.BUGS

# What is entered here ends with the process.
_for_good = ExitStack()


def plant(name: str) -> None:
    """Plant the bug for the rest of this process."""
    if name not in BUGS:
        raise LookupError(f"no planted bug {name!r}: there are {', '.join(sorted(BUGS))}")
    _for_good.enter_context(BUGS[name]())


def watch_all() -> None:
    """Plant nothing, and note for the rest of this process which tests run the places of all bugs."""
    for name, bug in BUGS.items():
        with noting(name):
            _for_good.enter_context(bug())
