"""A filter of the API's pipeline in place of Keystone's: a caller with a token of our stand-in is the operator.

Nova's Python runs it. A caller may also bring its identity in headers, as Keystone's filter would hand them on. Only the standard library.
"""

from collections.abc import Callable, Iterable
from typing import Any

PROJECT = "7be00000-0000-4000-8000-000000000001"
IDENTITY = {
    "HTTP_X_USER_ID": "operator",
    "HTTP_X_USER": "operator",
    "HTTP_X_PROJECT_ID": PROJECT,
    "HTTP_X_PROJECT_NAME": "operators",
    "HTTP_X_ROLES": "admin,manager,member,reader,service",
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
}

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def filter_factory(_options: object, **_more: str) -> Callable[[Application], Application]:
    def around(application: Application) -> Application:
        def identified(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if "HTTP_X_USER_ID" not in environ and environ.get("HTTP_X_AUTH_TOKEN"):
                environ.update(IDENTITY)
            return application(environ, start_response)

        return identified

    return around
