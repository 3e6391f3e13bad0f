"""RabbitMQ and PostgreSQL for tests and benchmarks; nothing is left behind.

`python -m tests.servers -- COMMAND` runs a command with both; see `__main__`. A test that kills a server uses its own
`PrivateRabbitMQ` or `PrivatePostgres`.
"""

from laboratory.private_servers import DidNotStartError, descendants, die_with
from tests.servers.cluster import PrivateCluster
from tests.servers.installed import AMQP_CTL_VARIABLE, AMQP_VARIABLE, POSTGRES_VARIABLE, NotInstalledError
from tests.servers.postgres import FAST, PrivatePostgres
from tests.servers.rabbitmq import CtlError, PrivateRabbitMQ

__all__ = [
    "AMQP_CTL_VARIABLE",
    "AMQP_VARIABLE",
    "FAST",
    "POSTGRES_VARIABLE",
    "CtlError",
    "DidNotStartError",
    "NotInstalledError",
    "PrivateCluster",
    "PrivatePostgres",
    "PrivateRabbitMQ",
    "descendants",
    "die_with",
]
