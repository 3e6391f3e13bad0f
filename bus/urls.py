"""Finds the broker that a URL names, so that other code need not know which kind of broker it uses."""

from urllib.parse import urlsplit

from bus.broker import Broker
from bus.configuration.hosts import check_hosts, hosts_of
from bus.configuration.sections import without_password
from bus.topology import Limits


def broker_at(url: str) -> Broker:
    """The broker of an `amqp://`, `amqps://` or `unix:///path` URL.

    An `amqp` URL may name several nodes, with commas (bus/configuration/hosts.py).

    A memory broker has no URL: the code that creates it hands the object to its users.
    """
    check_hosts(url)
    scheme = urlsplit(url).scheme
    match scheme:
        case "amqp" | "amqps":
            from bus.rabbit import RabbitBroker  # noqa: PLC0415 - so that embedded use never loads the AMQP client

            return RabbitBroker(url)
        case "unix":
            from bus.unix_socket.client import UnixBroker  # noqa: PLC0415

            parts = urlsplit(url)
            return UnixBroker(parts.path, user=parts.username or "")
        case _:
            raise ValueError(
                f"bus url {without_password(url)!r}: the scheme must be amqp, amqps or unix, not {scheme!r}"
            )


def limits_at(url: str) -> Limits:
    """The limits of the queues of a broker. A URL with several hosts says that it has several nodes."""
    return Limits(replicates_questions=len(hosts_of(url)) > 1)
