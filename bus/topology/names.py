"""The names of exchanges, and the forms of the names that deployments choose."""

import re

API = "moor.api"
PLACEMENT = "moor.placement"
CELL = "moor.cell.{cell}"
EVENTS = "moor.events"
REPLY = "moor.reply"
# The feed of applications: events of their own projects, with the project as the key.
FEED = "moor.feed"
# A message that must be retried returns to its queue, and one that cannot be handled goes to the dead letters, each
# under the name of its queue. So no user needs the default exchange, which reaches every queue. Each role has its own
# retry exchange, in each cell. The reason: RabbitMQ checks only the routing key of a parcel, but also routes it by the
# keys in its CC header. So a user that may write to an exchange reaches every queue bound to it.
RETRY = "moor.retry."
DEAD = "moor.dead"
IRONIC = "ironic"
IRONIC_TOPIC = "ironic_versioned_notifications"
IRONIC_EVENTS = "ironic.events"

DEAD_QUEUE = "dead"
CELL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# Stands for the cell of instances without a cell: no cell may have this name.
CELL0 = "cell0"
APPLICATION_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# How the roles and users of applications begin.
APPLICATION = "app-"
APPLICATION_USER = f"moor-{APPLICATION}"
# Each application has one of its own beside each of these, for what it publishes on its own exchange.
API_QUEUES = ("scheduler.requests", "scheduler.questions")
PROJECT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
# In the key of a message that names no project: it is for the instances of all projects.
NO_PROJECT = "-"


def application_exchange(application: str) -> str:
    """The exchange that one application may use instead of the API's, and to which no other application may write."""
    return f"{API}.{application}"


def application_queue(queue: str, application: str) -> str:
    """The name of an application's own queue beside this one for all; with `*`, a pattern of all such names."""
    return f"{queue}.{application}"
