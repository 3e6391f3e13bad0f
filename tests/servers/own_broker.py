"""Gives each test process a broker of its own: some tests stop it, or let it run short of memory."""

from collections.abc import Mapping, MutableMapping

from tests.servers.installed import AMQP_CTL_VARIABLE, AMQP_VARIABLE


def of_broker(variable: str, number: int) -> str:
    """The variable of the first broker, or of a further one."""
    return variable if number == 1 else f"{variable}_{number}"


def brokers_in(environment: Mapping[str, str]) -> int:
    """How many test processes can have their own broker. At least one: without a broker, it reports what is missing."""
    count = 1
    while environment.get(of_broker(AMQP_VARIABLE, count + 1)):
        count += 1
    return count


def take_broker(environment: MutableMapping[str, str], process: str) -> None:
    """Give a pytest-xdist process (gw0, gw1, ...) the broker of its number, if there is one."""
    number = int(process.removeprefix("gw")) + 1
    for variable in (AMQP_VARIABLE, AMQP_CTL_VARIABLE):
        if own := environment.get(of_broker(variable, number)):
            environment[variable] = own
