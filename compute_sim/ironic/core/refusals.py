"""The errors that the simulated Ironic returns."""


class Refused(Exception):  # noqa: N818 - named for what it is
    """An error: its HTTP status and its text. It is raised where it is found, and answered in one place (api/app.py)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


BAD_REQUEST, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, CONFLICT = 400, 403, 404, 406, 409


def no_such_node(ident: str) -> Refused:
    return Refused(NOT_FOUND, f"Node {ident} does not exist.")


def locked(uuid: str, host: str) -> Refused:
    return Refused(CONFLICT, f"Node {uuid} is locked by host {host}: try again when its operation is over.")
