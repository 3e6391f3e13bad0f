"""The metrics of schedulers. Those of the whole cloud (`OF_CLOUD`) are counted by one scheduler at a time."""

from kit.metrics import Metric

CLAIMS = Metric(
    "moor_claims",
    "counter",
    "Claims that placement answered. All verdicts but `claimed` and `already_claimed` are conflicts with other "
    "schedulers, or with changes of hosts. Of a request that is all or nothing each instance counts, or each that placement refused.",
    ("verdict",),
)
ACCEPTED = Metric(
    "moor_accept_seconds",
    "histogram",
    "From the sending of a build request until a scheduler works on it, for each instance that it asks for. Requests of one "
    "batch count as the first of them.",
)
CHOSEN = Metric(
    "moor_choice_seconds",
    "histogram",
    "To choose hosts for the instances of a batch, for each of them: the time that they wait for their choice.",
)
REQUESTS = Metric(
    "moor_requests",
    "counter",
    "Build requests that were answered, by `outcome`: accepted or rejected. One that is sent again counts again.",
    ("outcome",),
)
NO_VALID_HOST = Metric(
    "moor_no_valid_host",
    "counter",
    "Instances and moves for which no host was found, by the filter that removed the last host; `(none)` if there was no "
    "host at all. One that waits for room counts once.",
    ("filter",),
)
HOST_NAME_CLASHES = Metric(
    "moor_host_name_clashes",
    "counter",
    "Times that hosts of several cells were found to have one name.",
    ("name",),
)
NOVA_CALLS = Metric(
    "moor_nova_calls",
    "counter",
    "Messages of Nova's scheduler RPC that were handled, by `outcome`: answered, no_valid_host, late (after the caller's timeout), "
    "undeliverable (its queue is gone), repeated, unreadable; or the name of a cast.",
    ("outcome",),
)
NOVA_ANSWERED = Metric(
    "moor_nova_answer_seconds",
    "histogram",
    "From the arrival of a call of nova-conductor until its answer is confirmed.",
)
SHADOW_NOTES = Metric(
    "moor_nova_shadow_notes",
    "counter",
    "Instances whose host was compared in shadow mode, by `verdict`: same, as_good, nova_worse, nova_better, filtered, only_nova, only_ours, "
    "neither, not_compared; or lost, if the note could not be kept.",
    ("verdict",),
)
SHADOW_COPIES = Metric(
    "moor_nova_shadow_copies",
    "counter",
    "Messages that came to shadow mode, by `outcome`: decided, repeated, unreadable, undecided (placement did not answer), left; or the name "
    "of a cast.",
    ("outcome",),
)
NOVA_NOTIFICATIONS = Metric(
    "moor_nova_notifications",
    "counter",
    "Notifications of a Nova that schedules through us, by `outcome`: applied, ignored (of kinds that change no choice), or unreadable: "
    "then all of Nova is read again.",
    ("outcome",),
)

INSTANCES = Metric(
    "moor_instances",
    "gauge",
    "Instances by state and cell, without deleted ones. `cell` is empty until one is chosen, and `cell0` if none ever was.",
    ("state", "cell"),
)
WAITING = Metric("moor_waiting", "gauge", "Instances and moves that wait for room.")
WAITING_OLDEST = Metric(
    "moor_waiting_oldest_seconds", "gauge", "How long the oldest of these has waited; 0 if none waits."
)
MOVES = Metric(
    "moor_moves_under_way",
    "gauge",
    "Moves that have begun and not ended, by `kind`: migrate, resize, shelve and so on.",
    ("kind",),
)
HOSTS = Metric(
    "moor_hosts",
    "gauge",
    "Hosts by cell, kind and `state`: `up`; `down` or `dead` by order of an operator, or after too many failed builds; `must clean "
    "up` after it was dead; `silent` if nothing is heard of it; `draining`. The first that holds counts.",
    ("cell", "kind", "state"),
)
CAPACITY = Metric(
    "moor_capacity",
    "gauge",
    "What hosts and pools of a cell have of a resource class: less what is reserved, times the allocation ratio.",
    ("cell", "class"),
)
CAPACITY_USED = Metric("moor_capacity_used", "gauge", "How much of that is in use.", ("cell", "class"))
CAPACITY_OPEN = Metric(
    "moor_capacity_open",
    "gauge",
    "How much is free on hosts that take new instances: up, enabled, of a cell that is up.",
    ("cell", "class"),
)
CELL_UP = Metric(
    "moor_cell_up",
    "gauge",
    "1 if a conductor of the cell was heard that can work, 0 if the cell is down.",
    ("cell",),
)
DEAD_LETTERS = Metric(
    "moor_dead_letters",
    "gauge",
    "Messages among the dead letters, by `broker`: `api`, or the cells of a cell's own broker.",
    ("broker",),
)

OF_CLOUD = (
    *(INSTANCES, WAITING, WAITING_OLDEST, MOVES),
    *(HOSTS, CAPACITY, CAPACITY_USED, CAPACITY_OPEN, CELL_UP, DEAD_LETTERS),
)
METRICS = (
    *(REQUESTS, NO_VALID_HOST, ACCEPTED, CHOSEN, CLAIMS, HOST_NAME_CLASHES),
    *(NOVA_CALLS, NOVA_ANSWERED, NOVA_NOTIFICATIONS, SHADOW_NOTES, SHADOW_COPIES),
)
