"""The metrics of every process that reads queues. Those of all processes are in kit/health_server.py, which reads these, too."""

from kit.metrics import Metric

_QUEUE = ("queue",)

HANDLED = Metric("moor_messages_handled", "counter", "Messages that were handled and saved.", _QUEUE)
BATCHES = Metric("moor_batches", "counter", "Batches they were handled in.", _QUEUE)
PUT_BACK = Metric(
    "moor_messages_put_back", "counter", "Messages that were put back to be tried again.", _QUEUE
)
BURIED = Metric("moor_messages_buried", "counter", "Messages that became dead letters.", _QUEUE)
ROWS_FAILED = Metric(
    "moor_rows_failed",
    "counter",
    "Times that a part met a bug at a row, and went on with its other rows. If another process meets it there, too, the row is among the "
    "dead letters.",
    ("part",),
)
REDELIVERED = Metric("moor_parcels_redelivered", "counter", "Parcels that had been delivered before.", _QUEUE)
INTERRUPTIONS = Metric("moor_interruptions", "counter", "Times that consuming was interrupted.", _QUEUE)
IN_HAND = Metric(
    "moor_parcels_in_hand", "gauge", "Parcels that were received and are not acknowledged yet.", _QUEUE
)
BURIALS_WAITING = Metric(
    "moor_burials_waiting", "gauge", "Messages that the dead letters have not taken yet.", _QUEUE
)
WAITED = Metric(
    "moor_message_wait_seconds",
    "histogram",
    "From the sending of a message until this worker takes it: its time in the sender, the broker and this worker's backlog. "
    "Messages of one batch count as the first of them.",
    _QUEUE,
)
TOOK = Metric(
    "moor_message_handling_seconds",
    "histogram",
    "From the opening of its parcel until it is acknowledged: decided, saved, and what follows from it confirmed by the broker. "
    "Messages that are acknowledged together count as the first of them.",
    _QUEUE,
)
FED = Metric(
    "moor_feed_seconds",
    "histogram",
    "From the sending of an event until this worker hears it on its feed.",
    ("feed",),
)
ASKED = Metric(
    "moor_question_seconds",
    "histogram",
    "From a call that asks questions until all its answers are there, for each of them. `type` is that of the first one.",
    ("type",),
)
CONFIRMED = Metric(
    "moor_publish_seconds", "histogram", "From the sending of a parcel until the broker has confirmed it."
)
CONNECTIONS = Metric("moor_connections_made", "counter", "Connections made to brokers.")
SENT = Metric("moor_parcels_sent", "counter", "Parcels that brokers have answered.")
HELD_BACK = Metric("moor_parcels_held_back", "counter", "Times that a parcel had to be sent again.")
ANSWERS_DROPPED = Metric("moor_answers_dropped", "counter", "Answers whose asker was gone.")
ASKED_AGAIN = Metric("moor_questions_asked_again", "counter", "Questions that were asked again.")
WAITING = Metric("moor_messages_waiting", "gauge", "Messages that wait to be sent or confirmed.")
METRICS = (
    ROWS_FAILED,
    *(HANDLED, BATCHES, WAITED, TOOK, PUT_BACK, BURIED, BURIALS_WAITING),
    *(REDELIVERED, INTERRUPTIONS, IN_HAND),
    *(FED, ASKED, ASKED_AGAIN, ANSWERS_DROPPED),
    *(CONFIRMED, SENT, HELD_BACK, WAITING, CONNECTIONS),
)
