"""The names of the headers that a parcel may have.

A worker sets ours on a message that it returns to a queue or dead-letters. The broker sets its own on a parcel
that it dead-letters.
"""

REASON = "moor-reason"
QUEUE = "moor-queue"
ATTEMPTS = "moor-attempts"
WHERE = "moor-where"
SENDER = "moor-sender"
# The exchange and key that the message was first published to.
EXCHANGE = "moor-exchange"
KEY = "moor-key"
# A unique name of a dead letter, and how often a message of a newer version was returned to wait for a newer worker.
LETTER = "moor-letter"
# When a worker dead-lettered the message, in ISO 8601.
BURIED_AT = "moor-buried-at"
WAITS = "moor-newer-waits"

# Set by the broker; RabbitMQ's own names.
BROKER_REASON = "x-first-death-reason"
BROKER_QUEUE = "x-first-death-queue"
BROKER_EXCHANGE = "x-first-death-exchange"
# RabbitMQ gives the key in a list of tables; bus/rabbit/frames.py reads it from there.
BROKER_KEY = "x-first-death-key"
DELIVERY_LIMIT = "delivery_limit"
