"""Quotas: how much a project may have of each resource class, and how many instances."""

from typing import Annotated

from msgspec import Meta

from bus.message import Integer, Message, Project, ProjectMessage, StrictMessage
from bus.messages.placement import Counter, Value

# The limit on the number of instances stands among those on resource classes, whose names are in capitals.
INSTANCES = "instances"
LimitName = Annotated[str, Meta(pattern=r"^(instances|[A-Z0-9_]+)\Z", max_length=255)]
ProjectName = Annotated[Project, Meta(min_length=1)]


class SetQuota(StrictMessage, frozen=True, tag="quota.set"):
    """Set limits of a project. Each limit that is not named stays as it is; one with null is removed.

    A limit may be lower than what the project uses. Then nothing is taken from the project, and it gets nothing more of this
    class. A repeated order changes nothing.
    """

    project: ProjectName
    limits: Annotated[dict[LimitName, Counter | None], Meta(min_length=1, max_length=200)]


class QuotaState(Value, frozen=True):
    """The limits of a project, and what it uses of them. `used` has also what is not limited."""

    project: str
    limits: dict[str, Counter]
    used: dict[str, Integer] = {}


class AskQuotas(ProjectMessage, frozen=True, tag="quota.query"):
    """Asks for the quota of a project; or, without `project`, for a page of all, in the order of projects, after `after`."""

    project: Annotated[Project, Meta(description="the project's name")] = ""
    after: Project = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class QuotasFound(Message, frozen=True, tag="quota.found"):
    """The quotas that were asked for. A project without limits has none. `next` is where the next page begins, empty on the
    last page.
    """

    quotas: tuple[QuotaState, ...]
    next: str = ""
