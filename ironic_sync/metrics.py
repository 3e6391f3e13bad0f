"""The metrics of bare-metal daemons."""

from bus.measuring import Metric

EVENT_TO_SCHEDULABLE = Metric(
    "moor_node_event_seconds",
    "histogram",
    "From an event of Ironic, by its own time, until placement has accepted what it changed: then the node is offered to schedulers, or "
    "no longer. They hear of it by `moor_feed_seconds`.",
)
REPORTS_ACCEPTED = Metric(
    "moor_node_reports_accepted", "counter", "Reports about nodes that placement accepted."
)
NOTIFICATIONS_UNREADABLE = Metric(
    "moor_notifications_unreadable", "counter", "Notifications of Ironic that became dead letters."
)
METRICS = (EVENT_TO_SCHEDULABLE, REPORTS_ACCEPTED, NOTIFICATIONS_UNREADABLE)
