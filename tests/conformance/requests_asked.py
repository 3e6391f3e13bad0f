"""A request, and an answer, as they are handed to the process of the real openstack-placement and back."""

from msgspec import Struct


class Asked(Struct, frozen=True):
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None


class Told(Struct, frozen=True):
    status: int
    media: str = ""
    body: str = ""
    # The methods there are, of a 405.
    allow: str = ""
