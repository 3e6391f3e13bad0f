"""Would the instances of a host fit elsewhere, all together?"""

from collections.abc import Sequence

from msgspec import structs

from bus.messages.build import NoValidHost
from scheduler_worker.core.choosing.choosing import Chosen, choose
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

# Refusals of other specs than these are not explained: each costs passes over all hosts.
EXPLAINED_MAX = 10


def drain(
    picture: Picture, host: str, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int
) -> list[Chosen | NoValidHost]:
    """A host for each, without this one. Their shares on it, and in pools, are not free yet."""
    elsewhere = [structs.replace(spec, ignore_hosts=(*spec.ignore_hosts, host.lower())) for spec in specs]
    return choose(picture, elsewhere, plugins, salt, alternates=0, explained_max=EXPLAINED_MAX)
