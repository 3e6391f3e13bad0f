"""The topology as data: exchanges, queues, routes of messages, roles and their rights.

This one table has several uses. Objects are declared and users and permissions generated from it (bus/permissions.py);
messages are routed by it; and each arriving message is judged by it (bus/workers/authority.py). Tests, the simulation and the
broker check its promise that cells never send to the API level.

A pattern is an AMQP topic pattern; `{cell}` in a pattern or name is replaced by the cell's name. Some keys, roles and
queues are for messages that do not exist yet (moves), so that rights need not change with them.

    names.py      the names of exchanges, and the forms of names
    values.py     what the tables are made of
    routes.py     the route of each message type
    queues.py     exchanges and queues
    roles.py      roles and applications, their rights and their users
    declared.py   the objects of one broker
"""

from bus.topology.declared import is_retry_exchange, objects_of, retry_exchange_of
from bus.topology.names import (
    API,
    APPLICATION,
    APPLICATION_NAME,
    APPLICATION_USER,
    CELL,
    CELL0,
    CELL_NAME,
    DEAD,
    DEAD_QUEUE,
    EVENTS,
    FEED,
    IRONIC,
    IRONIC_EVENTS,
    IRONIC_TOPIC,
    MISSED,
    NO_PROJECT,
    PLACEMENT,
    PROJECT_NAME,
    REPLY,
    RETRY,
)
from bus.topology.queues import (
    EXCHANGES,
    INBOXES,
    QUEUES,
    answers_queue,
    feed_queue,
    inbox_queues,
    missed_queue,
)
from bus.topology.roles import (
    FACTS,
    OF_ADMINS,
    OF_PROJECTS,
    ROLES,
    ROLES_BY_NAME,
    Application,
    BrokerUser,
    broker_user_of,
    user_of,
)
from bus.topology.routes import (
    AGGREGATE_ORDERS,
    BOOK_QUESTIONS,
    BOOK_SEARCHES,
    BOOK_WRITES,
    GROUP_ORDERS,
    REJECTION,
    ROUTES,
    Destination,
    destination_of,
    end_of,
    in_cell,
    project_of_key,
)
from bus.topology.values import (
    DELIVERIES_MAX_LEAST,
    EVERY_SITE,
    Binding,
    Exchange,
    Grant,
    Kind,
    Limits,
    Objects,
    Queue,
    QueueKind,
    Role,
    Route,
    Scope,
    Site,
)

__all__ = [
    "AGGREGATE_ORDERS",
    "API",
    "APPLICATION",
    "APPLICATION_NAME",
    "APPLICATION_USER",
    "BOOK_QUESTIONS",
    "BOOK_SEARCHES",
    "BOOK_WRITES",
    "CELL",
    "CELL0",
    "CELL_NAME",
    "DEAD",
    "DEAD_QUEUE",
    "DELIVERIES_MAX_LEAST",
    "EVENTS",
    "EVERY_SITE",
    "EXCHANGES",
    "FACTS",
    "FEED",
    "GROUP_ORDERS",
    "INBOXES",
    "IRONIC",
    "IRONIC_EVENTS",
    "IRONIC_TOPIC",
    "MISSED",
    "NO_PROJECT",
    "OF_ADMINS",
    "OF_PROJECTS",
    "PLACEMENT",
    "PROJECT_NAME",
    "QUEUES",
    "REJECTION",
    "REPLY",
    "RETRY",
    "ROLES",
    "ROLES_BY_NAME",
    "ROUTES",
    "Application",
    "Binding",
    "BrokerUser",
    "Destination",
    "Exchange",
    "Grant",
    "Kind",
    "Limits",
    "Objects",
    "Queue",
    "QueueKind",
    "Role",
    "Route",
    "Scope",
    "Site",
    "answers_queue",
    "broker_user_of",
    "destination_of",
    "end_of",
    "feed_queue",
    "in_cell",
    "inbox_queues",
    "is_retry_exchange",
    "missed_queue",
    "objects_of",
    "project_of_key",
    "retry_exchange_of",
    "user_of",
]
