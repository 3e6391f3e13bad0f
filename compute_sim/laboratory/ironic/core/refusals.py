"""The errors that the simulated Ironic returns."""

from collections.abc import Iterable


class RequestRefused(Exception):  # noqa: N818 - named for what it is
    """An error: its HTTP status and its text. It is raised where it is found, and answered in one place (api/app.py)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


# Whether a rule is broken, and the status and the text of the refusal.
Rule = tuple[object, int, str]
BAD_REQUEST, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, CONFLICT, SERVER_ERROR = 400, 403, 404, 406, 409, 500


def no_such_node(ident: str) -> RequestRefused:
    return RequestRefused(NOT_FOUND, f"Node {ident} does not exist.")


def first_refusal(rules: Iterable[Rule]) -> RequestRefused | None:
    return next((RequestRefused(status, text) for is_broken, status, text in rules if is_broken), None)


def check(*rules: Rule) -> None:
    """Refuse a request by the first of these rules that it breaks: raise the error of that rule. If none is broken, do
    nothing.
    """
    if refused := first_refusal(rules):
        raise refused
