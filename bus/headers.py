"""The headers of a parcel: ours, on what a worker puts back or buries, and the broker's on what came back too often."""

REASON = "moor-reason"
QUEUE = "moor-queue"
ATTEMPTS = "moor-attempts"
WHERE = "moor-where"
SENDER = "moor-sender"
# Where it was said first.
EXCHANGE = "moor-exchange"
KEY = "moor-key"
# What no two dead letters have alike, and how often a message of a newer version was offered to a newer worker.
LETTER = "moor-letter"
WAITS = "moor-newer-waits"

# Set by the broker; RabbitMQ's own names.
BROKER_REASON = "x-first-death-reason"
BROKER_QUEUE = "x-first-death-queue"
BROKER_EXCHANGE = "x-first-death-exchange"
# RabbitMQ tells the key as well, in a list of tables; bus/rabbit/frames.py takes it from there.
BROKER_KEY = "x-first-death-key"
DELIVERY_LIMIT = "delivery_limit"
MAXLEN = "maxlen"
