"""The hosts that are chosen for orders to move instances."""

import random
from collections.abc import Awaitable, Callable, Sequence

from bus.messages.build import BuildRejected, NoValidHost
from scheduler_worker.core.choosing.choosing import Chosen, choose
from scheduler_worker.core.choosing.draft import Leaving
from scheduler_worker.core.choosing.one_host_for_all import choose_together
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.requests.move_needs import MoveNeeds, NeedsFound

# The host that was chosen, or why there is none; None if none is to be chosen.
MoveHost = Chosen | NoValidHost | BuildRejected | None


class MoveHostFinder:
    def __init__(
        self,
        picture: Picture,
        plugins: Plugins,
        *,
        alternates_max: int,
        make_sure: Callable[[], Awaitable[object]],
        chance: random.Random,
    ) -> None:
        self._picture = picture
        self._plugins = plugins
        self._alternates_max = alternates_max
        self._make_sure = make_sure
        self._salt = chance.getrandbits(32)

    async def find(
        self, wanted: Sequence[Sequence[NeedsFound]], are_whole: Sequence[bool]
    ) -> list[list[MoveHost]]:
        """The chosen host of each instance of each order, or why there is none."""
        found = self._choose(wanted, are_whole)
        if any(isinstance(each, NoValidHost) for of_order in found for each in of_order):
            await self._make_sure()
            found = self._choose(wanted, are_whole)
        return found

    def _choose(
        self, wanted: Sequence[Sequence[NeedsFound]], are_whole: Sequence[bool]
    ) -> list[list[MoveHost]]:
        """Choose a host for each move. A resize that may stay on its host is chosen by itself: otherwise another move
        of the batch could be given the room that its instance gives back. So are instances that move together.
        """
        batch = [
            each.spec
            for needs, is_whole in zip(wanted, are_whole, strict=True)
            for each in needs
            if isinstance(each, MoveNeeds) and each.leaving is None and not is_whole
        ]
        others = iter(self._chosen(batch))
        found: list[list[MoveHost]] = []
        for needs, is_whole in zip(wanted, are_whole, strict=True):
            if is_whole:
                found.append(self._choose_whole(needs))
                continue
            found.append(
                [
                    each
                    if not isinstance(each, MoveNeeds)
                    else next(others)
                    if each.leaving is None
                    else self._chosen([each.spec], each.leaving)[0]
                    for each in needs
                ]
            )
        return found

    def _choose_whole(self, needs: Sequence[NeedsFound]) -> list[MoveHost]:
        """Choose one host for instances that move together; none if one of them does not move."""
        refusal = next((each for each in needs if isinstance(each, BuildRejected)), None)
        if refusal is not None:
            return [refusal] * len(needs)
        specs = [each.spec for each in needs if isinstance(each, MoveNeeds)]
        if len(specs) < len(needs):
            return [None] * len(needs)
        found = choose_together(self._picture, specs, self._plugins, self._salt, self._alternates_max)
        return [found] * len(needs) if isinstance(found, NoValidHost) else [*found]

    def _chosen(
        self, specs: Sequence[InstanceSpec], leaving: Leaving | None = None
    ) -> list[Chosen | NoValidHost]:
        return choose(
            self._picture,
            specs,
            self._plugins,
            self._salt,
            self._alternates_max,
            leaving=() if leaving is None else (leaving,),
        )
