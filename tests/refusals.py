"""Why the filters refuse each host."""

from engine.choosing.planning import reasons
from engine.choosing.plugins import Plugins
from engine.flavors import Flavor
from engine.picture.picture import Picture
from engine.refusals import Miss
from engine.requests import Alternative, InstanceSpec


def why_not(picture: Picture, spec: InstanceSpec, plugins: Plugins) -> tuple[Miss, ...]:
    """Every host that does not qualify, with the first reason. Nothing is chosen or held."""
    asked = [Alternative("", Flavor(), spec)]
    verdicts, _ = reasons(picture, asked, plugins, step="", after="", limit=10_000)
    return tuple(Miss(host=each.host, reason=f"{each.step}: {each.reason}") for each in verdicts if each.step)
