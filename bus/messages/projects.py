"""Messages about what projects have: their server groups, and the applications that speak for them."""

from typing import Annotated

from msgspec import Meta

from bus.message import AnswerMessage, Kind, ProjectMessage, Route, StrictMessage
from bus.messages.build import IdPrefix
from engine.inventories import ConsumerId, GroupId, GroupPolicy, Label, Natural, PlaceRules, Positive, Value

# Server groups: sets of instances that are kept apart, or together.
#
# Schedulers store the definitions of groups. Placement stores their members, and checks each claim against them.


class CreateGroup(ProjectMessage, frozen=True, tag="group.create"):
    """Create a server group; a build request then names it by its id. The client chooses `id`. A repeated order with the
    same content is not done twice. Another content under the same id is rejected, also after the group was deleted.

    With `project`, only requests of that project may name the group. Without it, any may, and creating it needs the right
    to all projects.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="group.found", by=("application",))

    id: Annotated[
        GroupId,
        Meta(description="a uuid of your choice; the same id with the same content is the same group"),
    ]
    policy: Annotated[
        GroupPolicy,
        Meta(
            description="`affinity`: all members on one host, which the first one chooses; `anti-affinity`: at most "
            "`max_per_host` members on a host; the soft ones only prefer hosts"
        ),
    ]
    max_per_host: Annotated[
        Positive, Meta(description="with anti-affinity: how many members one host may have")
    ] = 1
    name: Annotated[Label, Meta(description="the group's name, for people")] = ""
    rules: Annotated[
        PlaceRules,
        Meta(
            description="the same for domains, at most four rules: `level` says of which level (1 is the largest), `policy` what; with "
            "`anti-affinity` a domain has at most `max_members`. A host without a domain of that level takes no member by a hard rule"
        ),
    ] = ()


class DeleteGroup(ProjectMessage, frozen=True, tag="group.delete"):
    """Delete a server group: no request may name it any more. Its members stay.

    As long as they live, they are still kept apart or together when a failed host moves one of them to an alternate.
    The answer has the deleted group; it is empty if there was none.

    With `project`, only a group of that project is deleted. Without it, one of any project, which needs the right to
    all projects.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="group.found", by=("application",))

    id: Annotated[GroupId, Meta(description="the group's id")]


class AskGroups(ProjectMessage, frozen=True, tag="group.query"):
    """Asks for one group with its members, or for a page of all groups.

    Pages are in the order of ids, and begin after the id `after`. With `project`, only groups of that project.
    Without it, of all projects, which needs the right to all of them.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="group.found", by=("application", "keeper"))

    id: Annotated[GroupId | None, Meta(description="a group's id: only this group, with its members")] = None
    after: GroupId | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    name: Annotated[Label, Meta(description="only groups with exactly this name")] = ""
    id_prefix: Annotated[
        IdPrefix,
        Meta(
            description="only groups whose ids begin with these digits: 4 or more, hexadecimal, lower case, without dashes"
        ),
    ] = ""


class PlacedMember(Value, frozen=True):
    """A member of a server group, and its host.

    It is an instance, or a consumer of type CLEANUP that takes the place of an instance on a silent host.
    """

    consumer: ConsumerId
    host: Label


class GroupState(Value, frozen=True):
    """A server group as it is now. `size` is how many of its members hold a share of a host.

    `members` are the first 1000 of them. Only the answer about a single group has them.
    """

    id: GroupId
    policy: GroupPolicy
    max_per_host: Positive = 1
    rules: PlaceRules = ()
    name: Label = ""
    project: Label = ""
    size: Natural = 0
    members: tuple[PlacedMember, ...] = ()


class GroupsFound(AnswerMessage, frozen=True, tag="group.found"):
    """A page of server groups. `next` is where the next page begins, null on the last page."""

    groups: tuple[GroupState, ...]
    next: GroupId | None = None


# Applications: client programs with their own user, and the projects that each may speak for.


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

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="application.was_set", by=("operator",))

    name: ApplicationName
    projects: Annotated[tuple[ProjectName, ...], Meta(max_length=1000)] = ()
    admin: bool = False
    removed: bool = False


class ApplicationSet(AnswerMessage, frozen=True, tag="application.was_set"):
    """The order about an application is done. `application` is its state now, null if it was removed."""

    application: KnownApplication | None


class AskApplications(StrictMessage, frozen=True, tag="application.query"):
    """Asks for all applications, in the order of their names."""

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="application.found", by=("operator",))


class ApplicationsFound(AnswerMessage, frozen=True, tag="application.found"):
    applications: tuple[KnownApplication, ...]
