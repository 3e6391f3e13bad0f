"""What placement's verdict makes of a search: an outcome, the same host again, or the next one.

Claimed, AlreadyClaimed   it has a host: what is really held counts, whatever was chosen
ShapeMoved                the picture takes the new state, and the same host is tried again
DoesNotFit                the next alternate; after the last, a new choice without these hosts
Superseded, TooOld        its life is over
NotAllowed                it ends in error; but if the host has gone to another cell, as DoesNotFit
"""

from msgspec import structs

from bus.messages.build import ClaimRefused
from bus.messages.cell import Choice
from bus.messages.placement import (
    SHARE_CELL,
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    NotAllowed,
    ShapeMoved,
    Superseded,
    TooOld,
)
from scheduler_worker.claiming.searching import Holds, Outcome, Over, Refused, Search
from scheduler_worker.core.choosing.choosing import Chosen, stand_ins
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.instances.lifecycle import FIRST_ATTEMPT
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.replica.replica import Replica
from scheduler_worker.settings import SchedulerSettings

RELEASED = "its claim had been released before it was granted"


class Judge:
    """Of one worker: what it learns of hosts goes into the worker's picture."""

    def __init__(
        self,
        picture: Picture,
        replica: Replica,
        registry: HostRegistry,
        *,
        plugins: Plugins,
        settings: SchedulerSettings,
        salt: int,
    ) -> None:
        self._picture = picture
        self._replica = replica
        self._choices = replica.choices
        self._registry = registry
        self._plugins = plugins
        self._settings = settings
        self._salt = salt

    def judge(self, one: Search, verdict: ClaimVerdict) -> bool:
        """What the verdict makes of the search; whether the picture needs more than the verdict told."""
        chosen = one.chosen
        assert chosen is not None, "who asked has chosen"
        match verdict:
            case Claimed():
                self._choices.granted(one.row.id, FIRST_ATTEMPT)
                one.outcome = Holds(chosen.cell, FIRST_ATTEMPT, chosen.choice, chosen.alternates, is_new=True)
                return False
            case ShapeMoved():
                one.refusals.append(ClaimRefused(host=chosen.choice.name, reason="its shape moved"))
                return self._moved(one, verdict)
        self._choices.drop(((one.row.id, FIRST_ATTEMPT),))
        match verdict:
            case AlreadyClaimed():
                one.outcome = self.adopted(one, chosen, verdict)
            case DoesNotFit():
                one.refusals.append(ClaimRefused(host=chosen.choice.name, reason=_shortage(verdict)))
                self._refused(one, _shortage(verdict))
            case Superseded(ended=True) | TooOld():
                one.outcome = Over(RELEASED)
            case NotAllowed(field=field, reason=reason) if field == SHARE_CELL:
                one.refusals.append(ClaimRefused(host=chosen.choice.name, reason=reason))
                self._refused(one, reason)
            case NotAllowed(field, reason):
                one.outcome = Refused(f"placement does not allow the claim: {field}: {reason}")
            case _:
                one.outcome = Refused(f"placement answered the claim by {verdict!r}")
        return False

    def _moved(self, one: Search, moved: ShapeMoved) -> bool:
        self._choices.drop(((one.row.id, FIRST_ATTEMPT),))
        whole = self._replica.moved(moved)
        assert one.chosen is not None, "who asked has chosen"
        if one.insisted_times + 1 < self._settings.shape_tries_max:
            one.insist()
            self._give_up_after_too_many(one, "its shape moved")
        else:
            self._refused(one, f"its shape moved {one.insisted_times + 1} times")
        return not whole

    def _refused(self, one: Search, why: str) -> None:
        assert one.chosen is not None, "who was refused had chosen"
        host = one.chosen.choice.name
        one.pass_over()
        self._give_up_after_too_many(one, f"{host}: {why}")
        if one.outcome is None and one.chosen is not None:
            self._choices.hold(((one.row.id, FIRST_ATTEMPT, one.chosen.choice.share),))

    def _give_up_after_too_many(self, one: Search, why: str) -> None:
        if one.claims >= self._settings.claims_max:
            one.outcome = Refused(f"{one.claims} claims were refused, and no more are tried; the last: {why}")

    def refill(self, one: Search) -> None:
        """Who came to its host by refusals has used up its alternates, or was never given any."""
        match one.outcome:
            case Holds() as holds if len(holds.alternates) < self._settings.alternates_max:
                hosts = (holds.choice, *holds.alternates)
                taken = [each.name.lower() for each in hosts]
                wish = structs.replace(one.elsewhere, ignore_hosts=(*one.elsewhere.ignore_hosts, *taken))
                missing = self._settings.alternates_max - len(holds.alternates)
                turn = one.row.id.int
                more = stand_ins(
                    self._picture,
                    wish,
                    self._plugins,
                    cell=holds.cell,
                    salt=self._salt,
                    count=missing,
                    turn=turn,
                )
                one.outcome = structs.replace(holds, alternates=(*holds.alternates, *more))

    def adopted(self, one: Search, chosen: Chosen | None, held: AlreadyClaimed) -> Outcome:
        """An earlier life of this request got its claim through, maybe on another host, maybe in another cell."""
        if not one.is_what_it_wants(held.share):
            return Refused("it holds a share of other amounts, claimed for another request of the same id")
        host = self._registry.get(held.share.host)
        if host is None:
            # The claimer has waited for its row. The end of the request lets go of the claim.
            return Refused(
                f"it holds a share of provider {held.share.host}, which is no host that any scheduler knows, for "
                f"{self._settings.host_row_wait_s:g} s"
            )
        choices = () if chosen is None or chosen.cell != host.cell else (chosen.choice, *chosen.alternates)
        others = [other for other in choices if other.share.host != host.id]
        return Holds(
            host.cell,
            held.attempt,
            Choice(name=host.name, share=held.share, kind=host.kind),
            tuple(others[: self._settings.alternates_max]),
        )


def _shortage(verdict: DoesNotFit) -> str:
    said = [f"{short.resource} asked {short.asked}, free {short.free}" for short in verdict.shortfalls]
    if full := verdict.full:
        said.append(f"has {full.instances} instances, at most {full.instances_max}")
    return ", ".join(said)
