"""The headers of a parcel: ours, on what a worker puts back or buries, and the broker's on what came back too often."""

REASON = "moor-reason"
QUEUE = "moor-queue"
ATTEMPTS = "moor-attempts"
WHERE = "moor-where"
SENDER = "moor-sender"

# Set by the broker; RabbitMQ's own names.
BROKER_REASON = "x-first-death-reason"
BROKER_QUEUE = "x-first-death-queue"
BROKER_EXCHANGE = "x-first-death-exchange"
DELIVERY_LIMIT = "delivery_limit"
