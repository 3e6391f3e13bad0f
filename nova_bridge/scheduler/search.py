"""The search for the host of one instance of Nova.

Nova writes allocations too, so the instance may hold something, and what it holds may change at any time:

    Superseded       somebody has written to it meanwhile, for example the conductor, which gave its allocations to a migration: claim again
    AlreadyClaimed   three cases:
                     - This very claim was granted before: adopt it.
                     - The instance holds of one host all that the request asks for, and the request allows that host. Another scheduler,
                       or an earlier try of the same request, has claimed it: adopt it, and keep the rest.
                     - Otherwise it is evacuated: it keeps what it holds of its old host, as Nova has it, and takes the new share beside.

An instance that was evacuated twice may still hold such a share of its first host, until that host's compute is back. So the share of
a host that is down is adopted only if the instance holds nothing else.
"""

from collections.abc import Callable
from datetime import datetime

from msgspec import structs

from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from bus.topology import CELL0
from engine.choosing.verdicts import Holds, amounts_of
from engine.flavors import InstanceId
from engine.hosts import HostState
from engine.inventories import Choice, ProviderId, ResourceAmount, Share
from engine.refusals import AlreadyClaimed, ClaimVerdict, Superseded
from engine.requests import InstanceSpec
from nova_bridge.request_spec import NovaRequest
from scheduler_worker.claiming.search import Search

# Nova may write the allocations of an instance while we claim; it does not do so for ever.
OTHER_ATTEMPTS_MAX = 6


class NovaSearch(Search):
    def __init__(
        self,
        instance: InstanceId,
        issued_at: datetime,
        request: NovaRequest,
        spec: InstanceSpec,
        *,
        host_of: Callable[[ProviderId], HostState | None],
        allows: Callable[[ProviderId], bool],
        may_hold: bool = False,
    ) -> None:
        """`host_of` finds the host of a provider, and `allows` says whether the request allows it. `may_hold`: the request was tried
        before, so its claim may be granted already.
        """
        super().__init__(instance, issued_at, request.build, spec)
        self.may_hold = may_hold
        self._host_of = host_of
        self._allows = allows
        # What the instance holds and keeps.
        self.held: AlreadyClaimed | None = None
        self._other_attempts = 0

    @property
    def is_in_doubt(self) -> bool:
        """Is it not known whether something was claimed?"""
        return self.may_hold and not isinstance(self.outcome, Holds)

    def answer_is_lost(self) -> None:
        """Its claim may have been granted: choose anew, and learn what is held when that is claimed."""
        self.may_hold = True
        if self.is_searching:
            self.chosen = None

    def resolve(self, verdict: ClaimVerdict) -> None:
        """Learn from the answer to `probe` what was claimed."""
        if isinstance(verdict, AlreadyClaimed):
            self._adopt(verdict)
        self.may_hold = False

    def holds_nothing(self) -> None:
        """All that was claimed has been given back."""
        self.outcome, self.may_hold = None, False

    def order(self) -> ClaimResources | SwapClaim:
        claim = self.claim()
        if self.held is None:
            return claim
        return SwapClaim(
            cell=claim.cell,
            consumer=claim.consumer,
            attempt=claim.attempt,
            issued_at=claim.issued_at,
            held_attempt=self.held.attempt,
            share=_beside(self.held.share, claim.share),
            group=claim.group,
        )

    def claims_again_after(self, verdict: ClaimVerdict) -> bool:
        match verdict:
            case Superseded(attempt, ended):
                # What it holds is not what it held any more.
                self.held = None
                return self._go_on_as(attempt + 1 if ended else attempt)
            case AlreadyClaimed() as held if self._is_own(held):
                self.granted(is_new=False)
                return True
            case AlreadyClaimed() as held if self._adopt(held):
                return True
            case AlreadyClaimed() as held:
                self.held = held
                return self._go_on_as(held.attempt + 1)
        return False

    def undo(self, now: datetime) -> ReleaseClaim | SwapClaim:
        """The order that gives back what was claimed: the answer could not be delivered."""
        if self.held is None:
            return ReleaseClaim(cell=CELL0, consumer=self.instance, attempt=self.held_attempt, issued_at=now)
        return SwapClaim(
            cell=CELL0,
            consumer=self.instance,
            attempt=self.held_attempt + 1,
            issued_at=now,
            held_attempt=self.held_attempt,
            share=structs.replace(self.held.share, shapes=(), instances_max=0),
            group=self.spec.server_group,
        )

    @property
    def held_attempt(self) -> int:
        """The attempt by which the granted share is held."""
        return getattr(self.outcome, "attempt", self.attempt)

    def _go_on_as(self, attempt: int) -> bool:
        self._other_attempts += 1
        if self._other_attempts > OTHER_ATTEMPTS_MAX:
            return False
        self.attempt = attempt
        return True

    def _is_own(self, held: AlreadyClaimed) -> bool:
        """Was the claim that was just sent granted before, and its answer lost?"""
        chosen = self.chosen
        return (
            chosen is not None
            and held.attempt == self.attempt
            and held.share.host == chosen.choice.share.host
            and (self.held is not None or set(held.share.amounts) == set(chosen.choice.share.amounts))
        )

    def _adopt(self, held: AlreadyClaimed) -> bool:
        """Take the share that was claimed for this request before, if the instance holds one, and keep all else that it holds."""
        wanted = dict(self.spec.amounts)
        by_host: dict[ProviderId | None, list[ResourceAmount]] = {None: []}
        states: list[HostState] = []
        for each in held.share.amounts:
            state = self._host_of(each.provider)
            if state is not None and state not in states:
                states.append(state)
            by_host.setdefault(None if state is None else state.id, []).append(each)
        for state in states:
            own = by_host[state.id]
            others = [each for id_, of_it in by_host.items() if id_ not in (None, state.id) for each in of_it]
            # A pool gives what a host does not have itself.
            given = {each.resource for each in own}
            pools = [each for each in by_host[None] if each.resource in wanted and each.resource not in given]
            share = Share(host=state.id, amounts=(*own, *pools))
            given_to_others = {each.resource for each in others}
            kept = [
                each
                for each in by_host[None]
                if each not in pools or (others and each.resource not in given_to_others)
            ]
            rest = (*others, *kept)
            is_usable = state.up or (self.may_hold and not rest)
            if amounts_of(share) == wanted and self._allows(state.id) and is_usable:
                self.held = (
                    structs.replace(held, share=structs.replace(held.share, amounts=rest)) if rest else None
                )
                choice = Choice(name=state.name, share=share, kind=state.kind)
                self.outcome = Holds(state.cell, held.attempt, choice)
                return True
        return False


def _beside(held: Share, wanted: Share) -> Share:
    """Both shares together. A provider that gives to both, such as a pool, gives only what is held already."""
    givers = {each.provider for each in held.amounts}
    added: tuple[ResourceAmount, ...] = tuple(each for each in wanted.amounts if each.provider not in givers)
    # Shapes are judged of all trees or of none, and that of the old host is not known.
    return structs.replace(wanted, amounts=(*held.amounts, *added), shapes=())
