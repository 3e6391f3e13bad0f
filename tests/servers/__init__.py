"""RabbitMQ and PostgreSQL for tests and benchmarks, leaving nothing behind.

`python -m tests.servers -- COMMAND` runs a command with both at hand; see `__main__`. A test that wants a server to
itself, in order to kill it, takes a `PrivateRabbitMQ` or a `PrivatePostgres`.
"""

from tests.servers.installed import AMQP_CTL_VARIABLE, AMQP_VARIABLE, POSTGRES_VARIABLE, NotInstalledError
from tests.servers.postgres import FAST, PrivatePostgres
from tests.servers.processes import descendants, die_with
from tests.servers.rabbitmq import CtlError, PrivateRabbitMQ
from tests.servers.starting import DidNotStartError

__all__ = [
    "AMQP_CTL_VARIABLE",
    "AMQP_VARIABLE",
    "FAST",
    "POSTGRES_VARIABLE",
    "CtlError",
    "DidNotStartError",
    "NotInstalledError",
    "PrivatePostgres",
    "PrivateRabbitMQ",
    "descendants",
    "die_with",
]
