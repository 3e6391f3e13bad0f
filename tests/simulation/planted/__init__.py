"""Bugs that were made on purpose, each one real piece replaced by one that does less: a simulation that does not find
them would not find others.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.simulation.planted import (
    of_the_books,
    of_the_bus,
    of_the_cells,
    of_the_nodes,
    of_the_scheduler,
    of_the_writes,
)

Plant = Callable[[], AbstractContextManager[None]]

BUGS: dict[str, Plant] = {
    "acknowledge before commit": of_the_bus.acknowledge_before_commit,
    "release twice": of_the_books.release_twice,
    "claim without guard": of_the_books.claim_without_guard,
    "claim after its own release": of_the_books.claim_after_its_own_release,
    "redelivery handled anew": of_the_cells.redelivery_handled_anew,
    "publish upward": of_the_cells.publish_upward,
    "delete overtakes place": of_the_cells.delete_overtakes_place,
    "late success of attempt 1 accepted": of_the_cells.late_success_accepted,
    "event dropped when its row is re-read": of_the_cells.event_dropped_when_its_row_is_read,
    "a gap in the feed ignored": of_the_scheduler.gap_in_the_feed_ignored,
    "a provider's generation not compared": of_the_writes.generation_not_compared,
    "a consumer's generation not compared": of_the_writes.consumer_generation_not_compared,
    "the second consumer written where the first is refused": of_the_writes.second_consumer_written,
    "allocations written that do not fit": of_the_writes.fit_not_looked_at,
    "used left as it was by a write by name": of_the_writes.used_left_as_it_was,
    "reshape forgets what is held": of_the_writes.reshape_forgets_what_is_held,
    "reshape goes on when its allocations are refused": of_the_writes.reshape_goes_on_when_refused,
    "a held inventory reshaped away": of_the_writes.held_inventory_reshaped_away,
    "descendants keep the root they had": of_the_writes.descendants_keep_their_root,
    "a provider deleted above its children": of_the_writes.deleted_above_its_children,
    "a provider deleted in use": of_the_writes.deleted_in_use,
    "traits leave the shape as it was": of_the_writes.traits_leave_the_shape,
    "a view keeps what is gone": of_the_writes.view_keeps_what_is_gone,
    "a batch acknowledged without its confirms": of_the_bus.acknowledged_without_confirms,
    "notes confirmed before they are sent": of_the_bus.notes_confirmed_before_they_are_sent,
    "a refused parcel taken for confirmed": of_the_bus.refused_taken_for_confirmed,
    "an unroutable order taken for delivered": of_the_bus.unroutable_taken_for_delivered,
    "attempts are not counted": of_the_bus.attempts_not_counted,
    "half of a parcel that came back is lost": of_the_bus.half_a_parcel_lost,
    "a dead letter without its reason": of_the_bus.dead_letter_without_reason,
    "a late answer taken for another": of_the_bus.late_answer_taken_for_another,
    "a sender believed by its header": of_the_bus.sender_believed_by_its_header,
    "a message counts under any key": of_the_bus.any_key_will_do,
    "a stranger is listened to": of_the_bus.stranger_listened_to,
    "the ratio over the reserve": of_the_books.ratio_over_the_reserve,
    "the ratio ignored": of_the_books.ratio_ignored,
    "the reserve handed out": of_the_books.reserve_handed_out,
    "the step size not looked at": of_the_books.step_not_looked_at,
    "the least amount not looked at": of_the_books.min_unit_not_looked_at,
    "a claim that is too old granted": of_the_books.horizon_not_looked_at,
    "the limit of a host not looked at": of_the_books.limit_of_a_host_not_looked_at,
    "nothing given back before burial": of_the_bus.nothing_given_back_before_burial,
    "a moved shape granted": of_the_books.moved_shape_granted,
    "a consumer of another cell released": of_the_books.foreign_consumer_released,
    "trees locked before consumers": of_the_books.trees_locked_before_consumers,
    "a lease without end": of_the_cells.lease_without_end,
    "a silent host taken for failed": of_the_cells.silent_host_taken_for_failed,
    "the greatest amount not looked at": of_the_books.max_unit_not_looked_at,
    "choices never dropped": of_the_scheduler.choices_never_dropped,
    "a word of another cell believed": of_the_scheduler.foreign_word_believed,
    "nothing is noted": of_the_scheduler.nothing_is_noted,
    "usage not merged": of_the_scheduler.usage_not_merged,
    "a name not compared": of_the_writes.name_not_compared,
}

# Those that only worlds of bare-metal nodes can show.
OF_NODES: dict[str, Plant] = {
    "the epoch of a report not looked at": of_the_nodes.epoch_not_looked_at,
    "a stale event wins": of_the_nodes.stale_event_wins,
    "a provider deleted on a rebalance": of_the_nodes.provider_deleted_on_rebalance,
    "a takeover without reading": of_the_nodes.takeover_without_reading,
    "a start believed": of_the_nodes.start_believed,
    "a claim freed before its instance is off the node": of_the_nodes.claim_freed_early,
    "the active of before a rebuild believed": of_the_nodes.active_before_believed,
    "the margin of a lease ignored": of_the_nodes.lease_margin_ignored,
    "an answer applied though an event came since": of_the_nodes.outdated_answer_applied,
}
BUGS |= OF_NODES
