"""Planted bugs: each replaces one real function by one that does less. A simulation that missed them would miss real
bugs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.simulation.planted import (
    admin_write_bugs,
    bus_bugs,
    claim_bugs,
    conductor_bugs,
    group_bugs,
    node_bugs,
    scheduler_bugs,
)

PlantedBug = Callable[[], AbstractContextManager[None]]

BUGS: dict[str, PlantedBug] = {
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
    "the limit of a host not checked": claim_bugs.limit_of_a_host_not_checked,
    "nothing released before a dead letter": bus_bugs.nothing_released_before_dead_letter,
    "a changed shape granted": claim_bugs.changed_shape_granted,
    "a consumer of another cell released": claim_bugs.foreign_consumer_released,
    "trees locked before consumers": claim_bugs.trees_locked_before_consumers,
    "a lease without end": conductor_bugs.lease_without_end,
    "a silent host treated as failed": conductor_bugs.silent_host_treated_as_failed,
    "max_unit not checked": claim_bugs.max_unit_not_checked,
    "choices never dropped": scheduler_bugs.choices_never_dropped,
    "an event of another cell believed": scheduler_bugs.foreign_event_believed,
    "no outbox notes written": scheduler_bugs.no_notes_written,
    "changes of usage ignored": scheduler_bugs.usage_ignored,
    "duplicate provider names accepted": admin_write_bugs.name_not_checked,
    "the policy of a group not judged": group_bugs.policy_not_judged,
    "a swap not judged by its group": group_bugs.swap_not_judged,
}

# Bugs that only bare-metal seeds can show.
OF_NODES: dict[str, PlantedBug] = {
    "the epoch of a report not checked": node_bugs.epoch_not_checked,
    "a stale event wins": node_bugs.stale_event_wins,
    "a provider deleted on a rebalance": node_bugs.provider_deleted_on_rebalance,
    "a takeover without reading": node_bugs.takeover_without_reading,
    "a started change counts as done": node_bugs.start_counts_as_done,
    "a claim released before its instance is off the node": node_bugs.claim_released_early,
    "the active state before a rebuild counts as its success": node_bugs.active_before_counts,
    "the margin of a lease ignored": node_bugs.lease_margin_ignored,
    "an answer applied over a later notification": node_bugs.outdated_answer_applied,
}
BUGS |= OF_NODES
