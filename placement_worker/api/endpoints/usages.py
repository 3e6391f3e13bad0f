"""Usage: of a provider, and by the consumers of a project."""

from bus.messages.administration import TypeUsage
from placement_worker.api.grammar import query_schemas
from placement_worker.api.grammar.backend import Backend
from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.versions import Version

_BY_TYPE: Version = (1, 38)
# The type of consumers that have none; "all" in a query asks for the sum of all types.
UNKNOWN = "unknown"
_ALL = "all"


async def show_of_provider(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    used = {resource: inventory.used for resource, inventory in state.inventories.items()}
    return Reply(
        body={"resource_provider_generation": state.generation, "usages": used},
        is_fresh=True,
    )


async def show_of_project(books: Backend, request: Request) -> Reply:
    query = query_schemas.USAGES.at(request.version).query(request.query)
    usages = await books.records.usages(query["project_id"], query.get("user_id", ""))
    if request.version < _BY_TYPE:
        return Reply(body={"usages": _together(usages)}, is_fresh=True)
    return Reply(body={"usages": _by_type(usages, query.get("consumer_type"))}, is_fresh=True)


def _together(usages: tuple[TypeUsage, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for usage in usages:
        for resource, amount in usage.used.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _by_type(usages: tuple[TypeUsage, ...], asked: str | None) -> dict[str, dict[str, int]]:
    if asked == _ALL:
        total = _together(usages)
        return {_ALL: {**total, "consumer_count": sum(usage.consumers for usage in usages)}} if total else {}
    return {
        (usage.type or UNKNOWN): {**usage.used, "consumer_count": usage.consumers}
        for usage in usages
        if asked in (None, usage.type or UNKNOWN)
    }
