"""Moves instances to other hosts, shelves and rebuilds them."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Unpack, cast
from uuid import UUID

from bus.messages.build import FlavorChange, InstancesFound, MoveEnd, MoveKind, RebuildInstance
from bus.messages.moves import AskMoves, Change, EndMove, MoveInstance, MovesFound
from bus.messages.stored_names import is_image_source
from engine.flavors import Flavor, Image, InstanceId
from moor.client.errors import NotFound, Rejected
from moor.client.following import has_ended, rests, why_not_moved, why_not_rebuilt
from moor.client.instances import InstanceCalls
from moor.client.requests import MoveFields, OrderFields, SentRequest, move_of, order_id

MOVES_PAGE = 200


class MoveCalls(InstanceCalls):
    """The client's methods that move instances or rebuild them."""

    async def migrate(
        self,
        instance: UUID,
        *,
        confirm_s: int | None = None,
        together: Sequence[UUID] = (),
        **fields: Unpack[MoveFields],
    ) -> SentRequest:
        """Move an instance to another host, stopped meanwhile. Then `confirm` the move or `revert` it; after `confirm_s` seconds it
        confirms itself.

        With `together`, these instances move to one host with room for all of them, and confirm at once.
        """
        return await self._move(instance, "migrate", fields, confirm_s=confirm_s, together=together)

    async def live_migrate(self, instance: UUID, **fields: Unpack[MoveFields]) -> SentRequest:
        """Move an instance to another host while it runs."""
        return await self._move(instance, "live-migrate", fields)

    async def resize(
        self,
        instance: UUID,
        size: Flavor | FlavorChange,
        *,
        confirm_s: int | None = None,
        **fields: Unpack[MoveFields],
    ) -> SentRequest:
        """Give an instance another size, on another host. Then `confirm` it or `revert` it.

        A `FlavorChange` says what changes, and all else stays; a `Flavor` replaces the whole size.
        """
        given = "flavor" if isinstance(size, Flavor) else "change"
        return await self._move(instance, "resize", fields, confirm_s=confirm_s, **{given: size})

    async def evacuate(
        self, instance: UUID, *, together: Sequence[UUID] = (), **fields: Unpack[MoveFields]
    ) -> SentRequest:
        """Build an instance anew on another host, since its own is down."""
        return await self._move(instance, "evacuate", fields, together=together)

    async def shelve(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an instance. It keeps its host and its share."""
        return await self._move(instance, "shelve", fields)

    async def offload(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an instance, save it as an image, and free its host. It may be shelved already."""
        return await self._move(instance, "offload", fields)

    async def unshelve(self, instance: UUID, **fields: Unpack[MoveFields]) -> SentRequest:
        """Run a shelved instance again: on its host, or on any suitable one if it was offloaded."""
        return await self._move(instance, "unshelve", fields)

    async def stop(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Switch an instance off. It keeps its host and its share. Nothing is done if it is stopped already."""
        return await self._move(instance, "stop", fields)

    async def start(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Run a stopped instance again. Nothing is done if it is active already."""
        return await self._move(instance, "start", fields)

    async def reboot(self, instance: UUID, **fields: Unpack[OrderFields]) -> SentRequest:
        """Stop an active instance, and start it again."""
        return await self._move(instance, "reboot", fields)

    async def confirm(self, instance: UUID) -> SentRequest:
        """Confirm the last move, which has arrived: the first host is freed."""
        return await self._end(instance, "confirm")

    async def revert(self, instance: UUID) -> SentRequest:
        """Revert the last move, which has arrived: the instance runs on its first host again, with its old size."""
        return await self._end(instance, "revert")

    async def abort(self, instance: UUID) -> SentRequest:
        """Abort the last move before it arrives, or while it waits for room."""
        return await self._end(instance, "abort")

    async def rebuild(self, instance: UUID, image: Image | str, **fields: Unpack[OrderFields]) -> SentRequest:
        """Build an instance anew on its host, from this image; what is on its disk is lost.

        A text is the image's id or URL, or the name of a stored image, whose properties its host must have.
        """
        given = cast("dict[str, Any]", {"project": self.project, **fields})
        given["request_id"] = order_id(given.get("request_id"))
        if isinstance(image, str) and not is_image_source(image):
            given["image_name"] = image
        else:
            given["image"] = Image(source=image) if isinstance(image, str) else image
        order = RebuildInstance(instance=InstanceId(instance), **given)
        answer = await self._ask(order, InstancesFound)
        return SentRequest(
            self,
            order.request_id,
            [each.id for each in answer.instances],
            what="the rebuild",
            project=order.project,
            is_over=has_ended,
            why_not_done=lambda state: why_not_rebuilt(state, order),
            known=answer.instances,
        )

    async def list_moves(self, *, host: str = "", ended: bool = False) -> AsyncGenerator[Change, None]:
        """The moves of all instances, the newest first: those under way, or with `ended` all of them. For admins."""
        question = AskMoves(host=host, ended=ended, limit=MOVES_PAGE)
        async for each in self._items(question, MovesFound, lambda page: page.moves):
            yield each

    async def _move(
        self, instance: UUID, kind: MoveKind, fields: MoveFields | OrderFields, **more: Any
    ) -> SentRequest:
        return await self._moved(move_of(instance, kind, self.project, fields, **more), "the move")

    async def _end(self, instance: UUID, how: MoveEnd) -> SentRequest:
        state = await self.show(instance)
        if state.move is None:
            raise Rejected("instance", str(instance), f"it has never moved: there is nothing to {how}")
        order = EndMove(request_id=state.move.request_id, instance=state.id, how=how, project=self.project)
        return await self._moved(order, f"the order to {how} the move")

    async def _moved(self, order: MoveInstance | EndMove, what: str) -> SentRequest:
        answer = await self._ask(order, InstancesFound)
        if not answer.instances:
            raise NotFound("instance", order.instance)
        return SentRequest(
            self,
            order.request_id,
            [each.id for each in answer.instances],
            what=what,
            project=order.project,
            is_over=lambda state: rests(state, order.request_id),
            why_not_done=lambda state: why_not_moved(state, order),
            known=answer.instances,
        )


# Moves all instances away from one host, a limited number at once, and says which could not move and why.
