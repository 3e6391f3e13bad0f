"""From a URL to a broker, so that only wiring knows which kind it is."""

from urllib.parse import urlsplit

from bus.broker import Broker


def broker_at(url: str) -> Broker:
    """`amqp://`, `amqps://` or `unix:///path`; a memory broker has no address, it is handed over by who made it."""
    scheme = urlsplit(url).scheme
    match scheme:
        case "amqp" | "amqps":
            from bus.rabbit import RabbitBroker  # noqa: PLC0415 - so that embedded use never loads the AMQP client

            return RabbitBroker(url)
        case "unix":
            from bus.unix_socket import UnixBroker  # noqa: PLC0415

            parts = urlsplit(url)
            return UnixBroker(parts.path, user=parts.username or "")
        case _:
            raise ValueError(f"bus url {url!r}: the scheme must be amqp, amqps or unix, not {scheme!r}")
