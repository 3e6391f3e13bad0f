"""Hosts for all instances of a request, or for none of them.

All hosts are chosen in the picture, and claimed by one question, which placement grants whole or not at all. When
placement refuses, the picture catches up, and all hosts are chosen anew, a limited number of times. When there are not
enough hosts, the same choice says how many instances would fit.

No choice is held in the picture while this code waits for anything but verdicts on claims. Otherwise another batch
would see that room as used, and refuse a request for nothing.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from bus.message import PARCEL_BYTES_MAX
from bus.messages.build import ClaimRefused
from bus.messages.together import (
    AllClaimed,
    ClaimsAnswered,
    ClaimTogether,
    NoneClaimed,
    RefusedPlace,
    taken_together,
)
from engine.choosing.choosing import Chosen
from engine.choosing.verdicts import EndedElsewhere, NextTry, SearchRefused, after_refusal
from engine.inventories import ConsumerId
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict, NotAllowed, NoValidHost
from kit.errors import WrongAnswer
from scheduler_worker.requests.reading import Search

if TYPE_CHECKING:
    from scheduler_worker.claiming.claimer import Claimer

# The rest of a parcel is for the envelope and the other fields.
PLACES_BYTES_MAX = PARCEL_BYTES_MAX - 8 * 1024

Verdict = AllClaimed | NoneClaimed | NotAllowed

_encode = msgspec.json.Encoder().encode


class TogetherFinder:
    """Stands beside the claimer that serves the searches of all requests, and uses what that has."""

    def __init__(self, chooser: "Claimer") -> None:
        self._chooser = chooser

    async def find(self, searches: Sequence[Search]) -> SearchRefused | None:
        """Find hosts for all of these searches, or for none. Returns None if each search has an outcome of its own, and
        otherwise why all instances are refused.
        """
        try:
            return await self._find(searches)
        finally:
            self._give_back(_searching(searches))

    async def _find(self, searches: Sequence[Search]) -> SearchRefused | None:
        claims, last = 0, ""
        while _searching(searches):
            if claims >= self._chooser.pace.claims_max:
                return SearchRefused(
                    f"all or nothing: {claims} claims for all instances were refused, and no more are tried; the last: {last}"
                )
            if claims:
                # Other schedulers that claim the same hosts pause for another time.
                await asyncio.sleep(
                    self._chooser.chance.uniform(0, self._chooser.pace.shape_pause_ms_max) / 1000
                )
            refused = await self._choose_all(searches) or _ended_among(searches)
            if refused is None and (claiming := _searching(searches)):
                claim = _together(claiming)
                if isinstance(claim, SearchRefused):
                    return claim
                claims += 1
                last = await self._claim_all(claiming, claim)
                refused = _ended_among(searches)
            if refused is not None:
                return refused
        return None

    async def _choose_all(self, searches: Sequence[Search]) -> SearchRefused | None:
        """Choose a host for each search, and hold them in the picture. Returns None if that succeeded, or if a search
        has ended.

        Each instance gets the best flavor that is left, so one request may get several.

        Otherwise returns the refusal, which says how many instances would fit; before that, the picture catches up with
        placement and the choice is repeated. While other batches claim, it is repeated up to `claims_max` times.
        """
        for one in _searching(searches):
            one.begin_again()
        nowhere = self._chooser.choose_now(_searching(searches))
        looks = 0
        while nowhere:
            looks += 1
            self._give_back(_searching(searches))
            await self._chooser.until_current(_searching(searches))
            if _ended_among(searches) is not None:
                return None
            nowhere = self._chooser.choose_any_flavor(_searching(searches))
            if nowhere and (not self._chooser.is_claiming or looks >= self._chooser.pace.claims_max):
                fit = len(searches) - len(nowhere)
                return SearchRefused(
                    f"all or nothing: {len(searches)} instances are asked for, and {fit} would fit",
                    no_valid_host=nowhere[0][1],
                )
        return None

    async def _claim_all(self, searches: Sequence[Search], claim: ClaimTogether) -> str:
        """Claim all chosen hosts by one question. Returns why placement refused; empty if it granted the claims."""
        chosen = {one.instance: _chosen(one) for one in searches}
        with self._chooser.claiming():
            (answer,) = await self._chooser.ask_all((claim,))
        if not isinstance(answer, ClaimsAnswered):
            raise WrongAnswer(f"placement answered a claim by {answer!r}")
        verdict = answer.verdict
        self._chooser.verdicts.update(_counted(verdict, len(searches)))
        if isinstance(verdict, AllClaimed):
            for one in searches:
                self._chooser.picture.granted(*one.key)
                one.granted(is_new=verdict.is_new)
            return ""
        self._give_back(searches)
        why = ""
        match verdict:
            case NoneClaimed(refused):
                why = self._learn({one.instance: one for one in searches}, chosen, refused)
                if any(isinstance(each.verdict, AlreadyClaimed) for each in refused):
                    await self._chooser.adopt_held(_searching(searches))
            case NotAllowed(field, reason):
                why = f"{field}: {reason}"
        await self._chooser.replica.catch_up()
        return why

    def _learn(
        self,
        searches: Mapping[ConsumerId, Search],
        chosen: Mapping[ConsumerId, Chosen],
        refused: Sequence[RefusedPlace],
    ) -> str:
        why = ""
        for each in refused:
            one, there = searches[each.consumer], chosen[each.consumer]
            if isinstance(each.verdict, AlreadyClaimed):
                why = why or "some hold a share already"
                continue
            step = after_refusal(each.verdict, self._chooser.registry.name_of)
            if not isinstance(step, NextTry):
                one.outcome = step
                continue
            one.refusals.append(ClaimRefused(host=there.choice.name, reason=step.reason))
            why = why or f"{there.choice.name}: {step.reason}"
        return why

    def _give_back(self, searches: Sequence[Search]) -> None:
        self._chooser.picture.drop(one.key for one in searches)
        for one in searches:
            one.chosen = None


def _together(searches: Sequence[Search]) -> ClaimTogether | SearchRefused:
    """The claim of all these searches, as one message; or why it is too long for one."""
    claims = [one.claim() for one in searches]
    first = claims[0]
    templates, places = taken_together(claims)
    content = _encode((first.issued_at, templates, places))
    if len(content) > PLACES_BYTES_MAX:
        return SearchRefused(
            f"all or nothing: a claim for {len(claims)} instances on these hosts has {len(content)} bytes, and a message at most "
            f"{PLACES_BYTES_MAX}: ask for fewer instances at once"
        )
    return ClaimTogether(
        # Made of the content, so that a repeated claim has the same.
        claim=UUID(bytes=hashlib.sha256(content).digest()[:16]),
        attempt=first.attempt,
        issued_at=first.issued_at,
        templates=templates,
        places=places,
        consumer_type=first.consumer_type,
        project=first.project,
        user=first.user,
        group=first.group,
    )


def _counted(verdict: Verdict, instances: int) -> list[type[ClaimVerdict]]:
    """The verdicts to count in the metrics, for a claim of so many instances: one for each instance if the claim is
    granted, and otherwise one for each instance that placement named.
    """
    match verdict:
        case AllClaimed(is_new):
            return [Claimed if is_new else AlreadyClaimed] * instances
        case NoneClaimed(refused):
            return [type(each.verdict) for each in refused]
        case NotAllowed():
            return [NotAllowed]


def _searching(searches: Sequence[Search]) -> list[Search]:
    return [one for one in searches if one.is_searching]


def _chosen(one: Search) -> Chosen:
    assert one.chosen is not None, "a host is chosen before it is claimed"
    return one.chosen


def _ended_among(searches: Sequence[Search]) -> SearchRefused | None:
    """The refusal of the whole request, if the search for one of its instances has ended without a host; otherwise
    None.
    """
    for one in searches:
        if isinstance(one.outcome, EndedElsewhere):
            return SearchRefused(f"all or nothing: instance {one.instance} had ended before all were placed")
        if isinstance(one.outcome, SearchRefused | NoValidHost):
            if isinstance(one.outcome, SearchRefused) and one.outcome.over_quota:
                # The numbers are those of the whole request.
                return SearchRefused(f"all or nothing: {one.outcome.reason}", over_quota=True)
            why = one.outcome.reason if isinstance(one.outcome, SearchRefused) else "no valid host"
            return SearchRefused(f"all or nothing: instance {one.instance}: {why}")
    return None
