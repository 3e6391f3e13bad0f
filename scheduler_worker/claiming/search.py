"""The search for one instance's host: what it needs, what is chosen, which hosts refused it, and its outcome.

The claimer alone moves it on; a builder reads `outcome` and `refusals`.
"""

from datetime import datetime
from uuid import UUID

from msgspec import structs

from bus.message import ProviderId
from bus.messages.build import BuildInstance, ClaimRefused, InstanceId
from bus.messages.placement import ClaimResources, ResourceAmount, Share
from bus.topology import CELL0
from scheduler_worker.core.choosing.choosing import Chosen  # noqa: TC001 - imported like every other type
from scheduler_worker.core.choosing.verdicts import NewChoice, OtherHost, SameHost
from scheduler_worker.core.instances.outcomes import Outcome, Refused
from scheduler_worker.core.instances.rows import FIRST_ATTEMPT
from scheduler_worker.core.requests import InstanceSpec

# The id of no provider: a claim on it is never granted, and its answer tells which share is held already.
_NOWHERE = ProviderId(UUID(int=0))


class Search:
    def __init__(
        self, instance: InstanceId, issued_at: datetime, build: BuildInstance, spec: InstanceSpec
    ) -> None:
        self.instance = instance
        # The moment of acceptance, which goes with each claim: so a repeated claim is the same claim.
        self.issued_at = issued_at
        self.build = build
        self.spec = spec
        self.chosen: Chosen | None = None
        self.outcome: Outcome | None = None
        self.refusals: list[ClaimRefused] = []
        # The one host that is tried again, since only its shape had moved, and how many times it was.
        self.insisted = ""
        self._insisted_times = 0
        self._ignored: list[str] = []
        self._claims = 0

    @property
    def is_searching(self) -> bool:
        return self.outcome is None

    @property
    def key(self) -> tuple[InstanceId, int]:
        return self.instance, FIRST_ATTEMPT

    @property
    def elsewhere(self) -> InstanceSpec:
        """The spec, without the hosts that were passed over."""
        if not self._ignored:
            return self.spec
        return structs.replace(self.spec, ignore_hosts=(*self.spec.ignore_hosts, *self._ignored))

    @property
    def wanted(self) -> InstanceSpec:
        """The spec for the next choice."""
        if self.insisted:
            return structs.replace(self.spec, hosts=(self.insisted,))
        return self.elsewhere

    def claim(self) -> ClaimResources:
        """The next claim, on the chosen host."""
        assert self.chosen is not None, "a host is chosen before it is claimed"
        self._claims += 1
        return ClaimResources(
            cell=self.chosen.cell,
            consumer=self.instance,
            attempt=FIRST_ATTEMPT,
            issued_at=self.issued_at,
            share=self.chosen.choice.share,
            project=self.build.project,
            user=self.build.user,
            group=self.spec.server_group,
        )

    def probe(self) -> ClaimResources:
        """A claim that is never granted: its answer tells which share the instance holds already."""
        nothing = Share(
            host=_NOWHERE, amounts=(ResourceAmount(provider=_NOWHERE, resource="VCPU", amount=1),)
        )
        return ClaimResources(
            cell=CELL0,
            consumer=self.instance,
            attempt=FIRST_ATTEMPT,
            issued_at=self.issued_at,
            share=nothing,
        )

    def refused(self, by: SameHost | OtherHost | NewChoice, *, shape_tries_max: int, claims_max: int) -> None:
        """Go on with the same host, or with the next alternate, or with a new choice; or give up."""
        assert self.chosen is not None, "a claim was refused for the chosen host"
        host, why = self.chosen.choice.name, by.reason
        self.refusals.append(ClaimRefused(host=host, reason=why))
        if isinstance(by, SameHost) and self._insisted_times + 1 < shape_tries_max:
            self.insisted = host.lower()
            self._insisted_times += 1
            self.chosen = None
        else:
            times = f" {self._insisted_times + 1} times" if isinstance(by, SameHost) else ""
            why = f"{host}: {why}{times}"
            others = () if isinstance(by, NewChoice) else self.chosen.alternates
            self.pass_over(host)
            self.chosen = (
                structs.replace(self.chosen, choice=others[0], alternates=others[1:]) if others else None
            )
        if self._claims >= claims_max:
            self.outcome = Refused(
                f"{self._claims} claims were refused, and no more are tried; the last: {why}"
            )

    def pass_over(self, host: str) -> None:
        self._ignored.append(host.lower())
        self.insisted, self._insisted_times = "", 0

    def forget_refusals(self) -> None:
        """The picture is up to date now: every host may be chosen again."""
        self._ignored.clear()
