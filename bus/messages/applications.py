"""Messages about applications: client programs with their own user, and the projects that each may speak for."""

from typing import Annotated

from msgspec import Meta

from bus.message import Message, StrictMessage
from bus.messages.placement import Value

ApplicationName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z")]
ProjectName = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}\Z")]


class KnownApplication(Value, frozen=True):
    """A registered application. An admin application speaks for all projects and names none."""

    name: ApplicationName
    projects: tuple[ProjectName, ...] = ()
    admin: bool = False


class SetApplication(StrictMessage, frozen=True, tag="application.set"):
    """Registers an application, a client program with its own user; or removes it if `removed` is set.

    The application may speak for exactly these projects; with `admin`, for all. Operators send this order.

    Of several orders about one application, the one with the latest `sent_at` in its envelope counts. So `sent_at` must
    be given. An older order that arrives late changes nothing.
    """

    name: ApplicationName
    projects: Annotated[tuple[ProjectName, ...], Meta(max_length=1000)] = ()
    admin: bool = False
    removed: bool = False


class ApplicationSet(Message, frozen=True, tag="application.was_set"):
    """The order about an application is done. `application` is its state now, null if it was removed."""

    application: KnownApplication | None


class AskApplications(StrictMessage, frozen=True, tag="application.query"):
    """Asks for all applications, in the order of their names."""


class ApplicationsFound(Message, frozen=True, tag="application.found"):
    applications: tuple[KnownApplication, ...]
