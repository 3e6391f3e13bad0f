"""One instance on its way to a host: what it wants, what was chosen for it, what it learnt, and what became of it."""

from uuid import UUID

from msgspec import Struct, structs

from bus.message import ProviderId
from bus.messages.build import BuildInstance, ClaimRefused, NoValidHost
from bus.messages.cell import Choice
from bus.messages.placement import ClaimResources, ResourceAmount, Share
from bus.topology import CELL0
from scheduler_worker.core.choosing.choosing import Chosen  # noqa: TC001 - like every other import, whoever uses it
from scheduler_worker.core.instances.lifecycle import FIRST_ATTEMPT, InstanceRow
from scheduler_worker.core.requests import Wish

# No provider: a claim on it is never granted, and its answer tells what is held already.
_NOWHERE = ProviderId(UUID(int=0))


class Holds(Struct, frozen=True):
    """It has this share of a host, by this attempt; `is_new` if it had none before it was claimed just now."""

    cell: str
    attempt: int
    choice: Choice
    alternates: tuple[Choice, ...] = ()
    is_new: bool = False


class Refused(Struct, frozen=True):
    """It will not have a host, and not for lack of one."""

    reason: str


class Over(Struct, frozen=True):
    """Its life has ended in placement's books."""

    reason: str


Outcome = Holds | NoValidHost | Refused | Over


class Search:
    """One instance on its way to a host."""

    def __init__(self, row: InstanceRow, build: BuildInstance, wish: Wish) -> None:
        self.row = row
        self.build = build
        self.wish = wish
        self.chosen: Chosen | None = None
        self.outcome: Outcome | None = None
        # The one host that is tried again, since only its shape had moved; and how often it was.
        self.insisted = ""
        self.insisted_times = 0
        self.ignored: list[str] = []
        self.claims = 0
        self.refusals: list[ClaimRefused] = []

    @property
    def elsewhere(self) -> Wish:
        """The wish, on no host that was passed over."""
        if not self.ignored:
            return self.wish
        return structs.replace(self.wish, ignore_hosts=(*self.wish.ignore_hosts, *self.ignored))

    @property
    def wanted(self) -> Wish:
        """The wish, with what was learnt on the way."""
        if self.insisted:
            return structs.replace(self.wish, hosts=(self.insisted,))
        return self.elsewhere

    def is_what_it_wants(self, share: Share) -> bool:
        amounts: dict[str, int] = {}
        for each in share.amounts:
            amounts[each.resource] = amounts.get(each.resource, 0) + each.amount
        return amounts == dict(self.wish.amounts)

    def pass_over(self) -> None:
        """Not this host: the next alternate, or a new choice."""
        assert self.chosen is not None, "there is a host to pass over"
        self.ignored.append(self.chosen.choice.name.lower())
        self.insisted, self.insisted_times = "", 0
        if self.chosen.alternates:
            first, *others = self.chosen.alternates
            self.chosen = structs.replace(self.chosen, choice=first, alternates=tuple(others))
        else:
            self.chosen = None

    def give_in(self) -> None:
        """The host that was insisted on does not qualify as it is now."""
        self.ignored.append(self.insisted)
        self.insisted, self.insisted_times = "", 0

    def insist(self) -> None:
        """The same host again, as it is now."""
        assert self.chosen is not None, "there is a host to insist on"
        self.insisted = self.chosen.choice.name.lower()
        self.insisted_times += 1
        self.chosen = None


def claim_of(one: Search) -> ClaimResources:
    assert one.chosen is not None, "who asks has chosen"
    return ClaimResources(
        cell=one.chosen.cell,
        consumer=one.row.id,
        attempt=FIRST_ATTEMPT,
        issued_at=one.row.issued_at,
        share=one.chosen.choice.share,
        project=one.build.project,
        user=one.build.user,
        group=one.build.group,
    )


def probe_of(one: Search) -> ClaimResources:
    """Asks what it holds already, and for nothing."""
    nothing = Share(host=_NOWHERE, amounts=(ResourceAmount(provider=_NOWHERE, resource="VCPU", amount=1),))
    return ClaimResources(
        cell=CELL0,
        consumer=one.row.id,
        attempt=FIRST_ATTEMPT,
        issued_at=one.row.issued_at,
        share=nothing,
    )
