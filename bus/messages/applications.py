"""Which applications there are: programs with a user of their own, and the projects that each speaks for."""

from typing import Annotated, ClassVar

from msgspec import Meta

from bus.message import Message
from bus.messages.placement import Value

ApplicationName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z")]
ProjectName = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}\Z")]


class KnownApplication(Value, frozen=True):
    """An application that is registered. An admin speaks for all projects, and names none."""

    name: ApplicationName
    projects: tuple[ProjectName, ...] = ()
    admin: bool = False


class SetApplication(Message, frozen=True, tag="application.set"):
    """An operator's word: there is this application, with these projects and no others; or it is `removed`. Orders about one
    application count by the envelope's `sent_at`, which must be given: an older one that comes late changes nothing.
    """

    IS_STRICT: ClassVar[bool] = True

    name: ApplicationName
    projects: Annotated[tuple[ProjectName, ...], Meta(max_length=1000)] = ()
    admin: bool = False
    removed: bool = False


class ApplicationSet(Message, frozen=True, tag="application.was_set"):
    """Done, and this is the application now; none if it was removed."""

    application: KnownApplication | None


class AskApplications(Message, frozen=True, tag="application.query"):
    """All applications, in the order of their names."""

    IS_STRICT: ClassVar[bool] = True


class ApplicationsFound(Message, frozen=True, tag="application.found"):
    applications: tuple[KnownApplication, ...]
