"""Planted bugs in which flavor an instance gets, of several that its request accepts."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from cell_conductor.core import swapping
from engine.refusals import NoValidHost
from scheduler_worker.requests.reading import Search
from tests.planted.replacing import replaced


def worst_flavor_first() -> AbstractContextManager[None]:
    """A search begins with the last flavor that the request accepts."""

    def planted(real: Any) -> Any:
        def begin_again(self: Any) -> None:
            real(self)
            while self.may_fall_back:
                self.fall_back(NoValidHost(hosts=0, steps=()))

        return begin_again

    return replaced(Search, "begin_again", planted)


def share_of_another_flavor() -> AbstractContextManager[None]:
    """An instance that gets a worse flavor is ordered as the best one."""

    def planted(real: Any) -> Any:
        def take_flavor(self: Any, passed_over: Any) -> None:
            real(self, passed_over)
            self.build = structs.replace(self.build, flavor=self.alternatives[0].flavor)

        return take_flavor

    return replaced(Search, "_take_flavor", planted)


def flavor_of_alternate_forgotten() -> AbstractContextManager[None]:
    """The cell keeps the first flavor when it goes on to an alternate with another one."""

    def planted(real: Any) -> Any:
        def take_host(transition: Any, host: Any) -> None:
            real(transition, host)
            transition.change(flavor=None)

        return take_host

    return replaced(swapping, "_take_host", planted)


def flavor_of_further_alternate_read_by_its_host() -> AbstractContextManager[None]:
    """A host that was an alternate before is taken with the flavor of that time, whatever the share is chosen for now."""

    def planted(_real: Any) -> Any:
        return lambda transition, host: transition.order.other_flavors.get(host.share.host)

    return replaced(swapping, "_flavor_on", planted)
