"""Brings a host into a new shape while instances live there, after placement has refused its report for what they hold.

It asks placement for the tree and its holders, asks the driver for their new places, and sends both in one order. If something
changed in between, for instance since a boot claimed something there, it begins again.
"""

import asyncio
import logging

from bus.messages.administration import ConsumerMoved
from bus.messages.hosts import AskHostShape, HostHolder, HostReshaped, HostShapeFound, ReshapeHost
from bus.messages.placement import InventoryInUse, ReportAccepted, ReportOutdated
from bus.workers.station import Station
from compute_sim.core.trees import (
    Accepted,
    Allocations,
    CannotReshape,
    ProviderTree,
    ReportRefused,
    ReportState,
    flaw_of_answer,
    known_tree,
    moved,
    whole_report,
    with_made_by_name,
)
from compute_sim.drivers import Driver
from compute_sim.settings import ComputeSettings
from engine.inventories import ConsumerId, ProviderState, ResourceAmount
from engine.refusals import DoesNotFit, ShapeMoved
from kit.errors import WrongAnswer

log = logging.getLogger(__name__)

# A host where boots claim all the time moves a few times; more is no race.
TRIES_MAX = 10


class HostReshaper:
    def __init__(self, station: Station, settings: ComputeSettings) -> None:
        self._station = station
        self._settings = settings

    async def reshape(self, driver: Driver, tree: ProviderTree, sequence: int) -> Accepted | ReportRefused:
        """Have placement take this tree, with what is held of it at its new places. Raises `Operational` if placement does not
        answer.
        """
        refused = ReportRefused("")
        for number in range(TRIES_MAX):
            if number:
                await asyncio.sleep(self._settings.again_s)
            found = await self._try(driver, tree, sequence + number)
            if not isinstance(found, _Again):
                return found
            log.info("reshape of host %s: %s; it is tried again", driver.host.name, found.reason)
            refused = ReportRefused(f"after {TRIES_MAX} tries of a reshape: {found.reason}")
        return refused

    async def _try(
        self, driver: Driver, tree: ProviderTree, sequence: int
    ) -> "Accepted | ReportRefused | _Again":
        states, generations, before = await self._shape_of(tree)
        if not states:
            return ReportRefused(
                "placement has no tree of this host in this cell, so there is nothing to reshape"
            )
        known, new = known_tree(tree.root, states), with_made_by_name(tree, states)
        after = driver.reshape(known, new, before)
        if isinstance(after, CannotReshape):
            return ReportRefused(f"the host cannot get its new shape: {after.reason}")
        if flaw := flaw_of_answer(new, before, after):
            return ReportRefused(f"the driver breaks its contract: {flaw}")
        moving = moved(before, after)
        report = whole_report(tree, self._settings.cell, sequence)
        order = ReshapeHost(
            cell=self._settings.cell,
            root=tree.root,
            shape=states[0].shape,
            providers=report.providers,
            sequence=report.sequence,
            moved=tuple(
                [HostHolder(consumer=one, generation=generations[one], amounts=after[one]) for one in moving]
            ),
        )
        answer = await self._station.ask(order)
        if not isinstance(answer, HostReshaped):
            raise WrongAnswer(f"placement answered a reshape by {answer!r}")
        match answer.verdict:
            case ReportAccepted():
                log.warning(
                    "host %s has another shape now: %d providers were %d, and %d consumers hold what they held of others of them",
                    *(driver.host.name, len(new.providers), len(known.providers), len(moving)),
                )
                driver.reshaped(after)
                return Accepted(ReportState(tree, sequence))
            case ShapeMoved() | ConsumerMoved() | InventoryInUse() | DoesNotFit() | ReportOutdated():
                return _Again(f"placement answered {answer.verdict}")
            case verdict:
                return ReportRefused(str(verdict))

    async def _shape_of(
        self, tree: ProviderTree
    ) -> tuple[tuple[ProviderState, ...], dict[ConsumerId, int], Allocations]:
        """The host's providers, and what each consumer holds of them, with its generation."""
        states: tuple[ProviderState, ...] = ()
        generations: dict[ConsumerId, int] = {}
        held: dict[ConsumerId, tuple[ResourceAmount, ...]] = {}
        after: ConsumerId | None = None
        while True:
            question = AskHostShape(cell=self._settings.cell, root=tree.root, after=after)
            answer = await self._station.ask(question)
            if not isinstance(answer, HostShapeFound):
                raise WrongAnswer(f"placement answered a question for a host's shape by {answer!r}")
            states = states or answer.providers
            for each in answer.holders:
                generations[each.consumer], held[each.consumer] = each.generation, each.amounts
            if answer.next is None:
                return states, generations, held
            after = answer.next


class _Again:
    """Something has changed since placement was asked."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
