"""The pages of instances: lists, one instance with its timeline, what waits, and moves."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from bus.messages.build import AskInstances, InstancesFound
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovePlace, MovesFound
from bus.messages.planning import AskExplanation, ExplanationsFound
from engine.flavors import InstanceId
from moor.dashboard.asking_pages import PAGE, AskingPages, id_of
from moor.dashboard.live_instances import instances_asked
from moor.dashboard.rendering import PageRefused, Reader
from moor.dashboard.timeline import timeline_of
from moor.instances.moves.history_command import how_it_ended
from moor.showing import COLOURS

HISTORY_PAGES_MAX = 10


class InstancePages(AskingPages):
    async def instances(self, request: Request, reader: Reader) -> Response:
        question = instances_asked(request, reader)
        found = await self._ask(question, InstancesFound)
        return self._page(
            request,
            reader,
            "instances.html",
            found=found,
            state=question.state,
            name=question.name,
            states=[*COLOURS],
            after=question.after or "",
            query=request.url.query,
        )

    async def instance(self, request: Request, reader: Reader) -> Response:
        """With `now`, also how its request would be decided at this moment."""
        id_ = InstanceId(request.path_params["id"])
        found = await self._ask(AskInstances(instances=(id_,), project=reader.project), InstancesFound)
        if not found.instances:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no instance {id_}.")
        (state,), details = found.instances, next(iter(found.details), None)
        changes, has_more = await self._history(id_, reader)
        plans_now = bool(request.query_params.get("now", ""))
        question = AskExplanation(instance=id_, plan_now=plans_now, project=reader.project)
        explained = await self._ask(question, ExplanationsFound)
        return self._page(
            request,
            reader,
            "instance.html",
            state=state,
            details=details,
            steps=timeline_of(state, details, changes, explained.explanations),
            has_more=has_more,
            explanations=explained.explanations,
            plans_now=plans_now,
            plan=explained.plan,
        )

    async def _history(self, id_: InstanceId, reader: Reader) -> tuple[Sequence[Change], bool]:
        """The orders for an instance, the oldest first, and whether there are more than are read here."""
        changes: list[Change] = []
        question = AskHistory(instance=id_, project=reader.project)
        for _ in range(HISTORY_PAGES_MAX):
            page = await self._ask(question, HistoryFound)
            changes += page.changes
            if not page.next:
                return changes, False
            question = structs.replace(question, after=page.next)
        return changes, True

    async def waiting(self, request: Request, reader: Reader) -> Response:
        after = request.query_params.get("after", "")
        question = AskInstances(state="waiting", after=id_of(after), limit=PAGE)
        found = await self._ask(question, InstancesFound)
        return self._page(request, reader, "waiting.html", found=found, after=after)

    async def moves(self, request: Request, reader: Reader) -> Response:
        """Moves under way, or with `ended` all of them, the newest first."""
        asked = request.query_params
        ended, after = bool(asked.get("ended", "")), _place_of(asked)
        found = await self._ask(AskMoves(ended=ended, after=after, limit=PAGE), MovesFound)
        return self._page(
            request,
            reader,
            "moves.html",
            found=found,
            ended=ended,
            after=after,
            how_it_ended=how_it_ended,
        )


def _place_of(asked: Mapping[str, str]) -> MovePlace | None:
    """The move after which a page begins: its instance, and when it was asked for."""
    instance = id_of(asked.get("after", ""))
    if instance is None:
        return None
    text = asked.get("at", "")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise PageRefused(f"at is {text!r}: it must be a time with a zone, in ISO 8601.")
    return MovePlace(asked_at=at, instance=instance)
