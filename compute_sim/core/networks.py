"""Physical networks that each simulated host reaches, as settings name them: NAME=KILOBITS."""

import re
from collections.abc import Iterable

from msgspec import Struct

from bus.messages.placement import INTEGER_MAX

FORM = "NAME=KILOBITS such as physnet0=10000000"
_WRITTEN = re.compile(r"(?P<name>[\w-]{1,100})=(?P<kilobits>[0-9]{1,10})", re.ASCII)


class Network(Struct, frozen=True):
    """A physical network, and the bandwidth that a host has on it in each direction."""

    name: str
    kilobits: int

    @property
    def trait(self) -> str:
        """The trait of its providers, as port requests ask for it (`physical_network`)."""
        return f"CUSTOM_PHYSNET_{re.sub('[^A-Z0-9_]', '_', self.name.upper())}"


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    networks = tuple([_read(text) for text in texts])
    traits = [each.trait for each in networks]
    if twice := next((each.name for each in networks if traits.count(each.trait) > 1), None):
        raise ValueError(
            f"networks has the name {twice!r} twice, as traits are written: each may be there once"
        )
    return networks


def _read(text: str) -> Network:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ValueError(f"networks has {text!r}, must be {FORM}")
    kilobits = int(found["kilobits"])
    if not 0 < kilobits <= INTEGER_MAX:
        raise ValueError(f"networks has {text!r}: KILOBITS is {kilobits}, must be 1 to {INTEGER_MAX}")
    return Network(found["name"], kilobits)
