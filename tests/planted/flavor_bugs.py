"""Planted bugs in which flavor an instance gets, of several that its request accepts."""

from typing import Any

from msgspec import structs

from cell_conductor.core import swapping
from engine.refusals import NoValidHost
from scheduler_worker.requests.reading import Search
from tests.planted.replacing import planted, planted_by


# A search begins with the last flavor that the request accepts.
@planted("the worst flavor comes first", Search, "begin_again", world="flavors")
def worst_flavor_first(real: Any, self: Any) -> None:
    real(self)
    while self.may_fall_back:
        self.fall_back(NoValidHost(hosts=0, steps=()))


# An instance that gets a worse flavor is ordered as the best one.
@planted("a share of another flavor than the order", Search, "_take_flavor", world="flavors")
def share_of_another_flavor(real: Any, self: Any, passed_over: Any) -> None:
    real(self, passed_over)
    self.build = structs.replace(self.build, flavor=self.alternatives[0].flavor)


# The cell keeps the first flavor when it goes on to an alternate with another one.
@planted("the flavor of an alternate forgotten", swapping, "_take_host", world="flavors")
def flavor_of_alternate_forgotten(real: Any, transition: Any, host: Any) -> None:
    real(transition, host)
    transition.change(flavor=None)


# A host that was an alternate before is taken with the flavor of that time, whatever the share is chosen for now.
@planted_by("the flavor of a further alternate read by its host", swapping, "_flavor_on", world="flavors")
def flavor_of_further_alternate_read_by_its_host(_real: Any) -> Any:
    return lambda transition, host: transition.order.other_flavors.get(host.share.host)
