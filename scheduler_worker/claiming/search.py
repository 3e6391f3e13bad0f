"""The search for the host of one instance: what it needs, which host is chosen, which hosts refused, and how the search
ended.

A request may accept several flavors. The search begins with the best one, and takes the next one when no host is found
for it.

Only the claimer changes a search; a builder reads its `outcome` and `refusals`, and the flavor that was found.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from msgspec import structs

from bus.messages.build import BuildInstance, ClaimRefused
from bus.messages.placement import ClaimResources, SwapClaim
from bus.topology import CELL0
from engine.choosing.choosing import Chosen
from engine.choosing.verdicts import (
    FlavorFound,
    Holds,
    NewChoice,
    NextTry,
    OtherHost,
    Outcome,
    SameHostAgain,
    SearchRefused,
)
from engine.flavors import FlavorPassedOver, InstanceId
from engine.hosts import host_in_cell
from engine.inventories import Choice, ProviderId, ResourceAmount, Share
from engine.refusals import ClaimVerdict, NoValidHost, Shortfall
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import FIRST_ATTEMPT

# The id of no provider: a claim on it is never granted, and its answer tells which share is held already.
_NOWHERE = ProviderId(UUID(int=0))
NOTHING = Share(host=_NOWHERE, amounts=(ResourceAmount(provider=_NOWHERE, resource="VCPU", amount=1),))


class Search:
    # By which attempt it claims.
    attempt = FIRST_ATTEMPT

    def __init__(
        self,
        instance: InstanceId,
        issued_at: datetime,
        build: BuildInstance,
        spec: InstanceSpec,
        alternatives: Sequence[Alternative] = (),
        *,
        trace: str = "",
    ) -> None:
        """`alternatives` are all flavors that the request accepts, the best first; none if it accepts one only."""
        self.instance = instance
        self.trace = trace
        # The moment of acceptance, which goes with each claim: so a repeated claim is the same claim.
        self.issued_at = issued_at
        # The request and the needs with the present flavor.
        self.build = build
        self.spec = spec
        self.alternatives = alternatives
        # The better flavors for which there was no host.
        self.passed_over: list[FlavorPassedOver] = []
        self.chosen: Chosen | None = None
        self.outcome: Outcome | None = None
        self.refusals: list[ClaimRefused] = []
        # The one host that is tried again, named with its cell, since only its shape had moved, and how many times it was.
        self.insisted = ""
        self._insisted_times = 0
        # What placement said is free on the chosen host, when it refused the ways that were tried there.
        self.shortfalls: list[Shortfall] = []
        self._ignored: list[str] = []
        self._claims = 0
        if alternatives:
            self.begin_again()

    @property
    def is_searching(self) -> bool:
        return self.outcome is None

    @property
    def key(self) -> tuple[InstanceId, int]:
        return self.instance, self.attempt

    @property
    def elsewhere(self) -> InstanceSpec:
        """The spec of the instance, without the hosts that this search has passed over."""
        if not self._ignored:
            return self.spec
        return structs.replace(self.spec, ignore_hosts=(*self.spec.ignore_hosts, *self._ignored))

    @property
    def wanted(self) -> InstanceSpec:
        """The spec for the next choice: only the host that the search insists on, if there is one; otherwise
        `elsewhere`.
        """
        if self.insisted:
            return structs.replace(self.spec, hosts=(self.insisted,))
        return self.elsewhere

    # Flavors

    @property
    def found(self) -> FlavorFound | None:
        """The present flavor, if the request accepts several."""
        if not self.alternatives:
            return None
        flavor = self.alternatives[len(self.passed_over)].flavor
        return FlavorFound(flavor, encoded(self.spec, self.build), tuple(self.passed_over))

    @property
    def may_fall_back(self) -> bool:
        """Does the request accept a further flavor?"""
        return len(self.passed_over) + 1 < len(self.alternatives)

    @property
    def worse_flavors(self) -> Sequence[Alternative]:
        """The flavors after the present one."""
        return self.alternatives[len(self.passed_over) + 1 :]

    def fall_back(self, why: NoValidHost | str) -> None:
        """Search a host for the next flavor, since there is none for the present one."""
        name = self.alternatives[len(self.passed_over)].name
        if isinstance(why, NoValidHost):
            passed = FlavorPassedOver(flavor=name, reason="no valid host", no_valid_host=why)
        else:
            passed = FlavorPassedOver(flavor=name, reason=why)
        self._take_flavor([*self.passed_over, passed])

    def begin_again(self) -> None:
        """Search a host for the best flavor that the request accepts."""
        if self.alternatives:
            self._take_flavor([])

    def take_flavor_of(self, amounts: Mapping[str, int], traits: Collection[str]) -> None:
        """Take the flavor that asks for these amounts, for an instance that holds them already. If flavors differ in their
        traits alone, the host's traits decide.
        """
        able = [number for number, each in enumerate(self.alternatives) if dict(each.spec.amounts) == amounts]
        numbers = [number for number in able if _allows(self.alternatives[number].spec, traits)] or able
        if numbers and len(self.passed_over) not in numbers:
            better = self.alternatives[len(self.passed_over) : numbers[0]]
            reason = "the instance holds the share of another flavor already"
            unasked = [FlavorPassedOver(flavor=each.name, reason=reason) for each in better]
            self._take_flavor([*self.passed_over, *unasked][: numbers[0]])

    def _take_flavor(self, passed_over: list[FlavorPassedOver]) -> None:
        """Go on with the flavor that follows these ones."""
        taken = self.alternatives[len(passed_over)]
        self.passed_over = passed_over
        self.build = structs.replace(self.build, flavor=taken.flavor)
        self.spec = taken.spec
        self.chosen = None
        self.insisted, self._insisted_times = "", 0
        self._ignored.clear()
        self.shortfalls.clear()

    # Claims

    def claims_again_after(self, verdict: ClaimVerdict) -> bool:  # noqa: ARG002 - our own requests never do
        """Does this verdict let the search claim by another attempt, or settle it? Then nothing else follows from the verdict."""
        return False

    def order(self) -> ClaimResources | SwapClaim:
        """The next message that asks placement for the chosen host."""
        return self.claim()

    def claim(self) -> ClaimResources:
        """The next message that asks placement to claim the chosen host."""
        assert self.chosen is not None, "a host is chosen before it is claimed"
        self._claims += 1
        return ClaimResources(
            cell=self.chosen.cell,
            consumer=self.instance,
            attempt=self.attempt,
            issued_at=self.issued_at,
            share=self.chosen.choice.share,
            project=self.build.project,
            user=self.build.user,
            group=self.spec.server_group,
        )

    def probe(self) -> ClaimResources:
        """A claim that is never granted: its answer tells which share the instance holds already."""
        return ClaimResources(
            cell=CELL0,
            consumer=self.instance,
            attempt=self.attempt,
            issued_at=self.issued_at,
            share=NOTHING,
            project=self.build.project,
        )

    def granted(self, *, is_new: bool = True) -> None:
        """Placement has granted the claim of the chosen host, now or, if it is not new, at an earlier try."""
        chosen = self.chosen
        assert chosen is not None, "a host is chosen before it is claimed"
        self.outcome = Holds(
            chosen.cell,
            self.attempt,
            chosen.choice,
            chosen.alternates,
            is_new=is_new,
            hosts=chosen.hosts,
            qualified=chosen.qualified,
        )

    def try_other_way(self, way: Choice, by: OtherHost, *, claims_max: int) -> None:
        """Choose the same host again, with other amounts from its providers, after placement refused the first way for
        lack of room.
        """
        assert self.chosen is not None, "a claim was refused for the chosen host"
        self.refusals.append(ClaimRefused(host=way.name, reason=by.reason))
        self.chosen = structs.replace(self.chosen, choice=way)
        self._give_up_after(claims_max, f"{way.name}: {by.reason}")

    def refused(self, by: NextTry, *, shape_tries_max: int, claims_max: int) -> None:
        """Note a refused claim, and go on: with the same host, with the next alternate, or with a new choice; or give
        up.
        """
        assert self.chosen is not None, "a claim was refused for the chosen host"
        host, why = self.chosen.choice.name, by.reason
        named = host_in_cell(self.chosen.cell, host).lower()
        self.refusals.append(ClaimRefused(host=host, reason=why))
        if isinstance(by, SameHostAgain) and self._insisted_times + 1 < shape_tries_max:
            self.insisted = named
            self._insisted_times += 1
            self.chosen = None
        else:
            times = f" {self._insisted_times + 1} times" if isinstance(by, SameHostAgain) else ""
            why = f"{host}: {why}{times}"
            others = () if isinstance(by, NewChoice) else self.chosen.alternates
            self.pass_over(named)
            self.chosen = _on_alternate(self.chosen, others[0], others[1:]) if others else None
        self._give_up_after(claims_max, why)

    def _give_up_after(self, claims_max: int, why: str) -> None:
        # Each flavor may be claimed so many times.
        if self._claims >= claims_max * (len(self.passed_over) + 1):
            reason = f"{self._claims} claims were refused, and no more are tried; the last: {why}"
            if self.may_fall_back:
                self.fall_back(reason)
            else:
                self.outcome = SearchRefused(reason, may_pass=True)

    def pass_over(self, host: str) -> None:
        self._ignored.append(host)
        self.shortfalls.clear()
        self.insisted, self._insisted_times = "", 0

    def forget_refusals(self) -> None:
        """Allow hosts that were passed over to be chosen again, since the picture is up to date now."""
        self._ignored.clear()


def _allows(spec: InstanceSpec, traits: Collection[str]) -> bool:
    """May a host with these traits have an instance of the spec?"""
    return all(trait in traits for trait in spec.required) and not any(
        trait in traits for trait in spec.forbidden
    )


def _on_alternate(chosen: Chosen, alternate: Choice, others: Sequence[Choice]) -> Chosen:
    """The choice `chosen` with this alternate in the place of its host. Of the other alternates, those on the same host
    are left out: if the host fails to build, it would be tried a second time.
    """
    others = tuple([each for each in others if each.share.host != alternate.share.host])
    return structs.replace(chosen, choice=alternate, alternates=others)
