"""The errors that the simulated Ironic returns."""

from msgspec import Struct


class Refused(Struct, frozen=True):
    """An error: its HTTP status and its text."""

    status: int
    text: str


BAD_REQUEST, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, CONFLICT = 400, 403, 404, 406, 409


def no_such_node(ident: str) -> Refused:
    return Refused(NOT_FOUND, f"Node {ident} does not exist.")


def locked(uuid: str, host: str) -> Refused:
    return Refused(CONFLICT, f"Node {uuid} is locked by host {host}: try again when its operation is over.")
