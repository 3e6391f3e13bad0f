"""A request and its answer, as they pass to the process of the real openstack-placement and back."""

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
    # By names in lower case.
    headers: dict[str, str] = {}
