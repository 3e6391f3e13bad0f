"""Filters and weighers of other packages, by their entry points.

    [project.entry-points."moorage.filters"]
    rack_power = "rack_power:EnoughPower"           # called without arguments

    [project.entry-points."moorage.weighers"]
    rack_power = "rack_power:SparePower"            # called with its multiplier

Only plugins that the settings name are imported.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from math import isfinite
from typing import Any

from engine.choosing.plugin_settings import OPTIONAL_FILTERS, STANDARD_WEIGHERS, PluginSettings
from engine.choosing.plugins import MULTIPLIERS_MAX, Filter, Weigher

FILTERS_GROUP = "moorage.filters"
WEIGHERS_GROUP = "moorage.weighers"
_OF_FILTERS = ("name", "is_per_instance", "reads", "woken_by", "scopes", "image_keys", "passes", "reason")
_OF_WEIGHERS = ("name", "multiplier", "minimum", "reads", "woken_by", "weigh")


def filters_of(settings: PluginSettings) -> Mapping[str, Filter]:
    """The filters of other packages that the settings name. May raise ValueError."""
    loaded: dict[str, Filter] = {}
    for name in settings.filters:
        if name not in OPTIONAL_FILTERS:
            made = _factory("filters", name, FILTERS_GROUP, OPTIONAL_FILTERS)()
            loaded[name] = _checked("filters", name, made, _OF_FILTERS)
    return loaded


def weighers_of(settings: PluginSettings) -> Mapping[str, Weigher]:
    """The weighers of other packages that the settings name, as NAME or NAME=MULTIPLIER. May raise ValueError."""
    loaded: dict[str, Weigher] = {}
    for text in settings.weighers:
        if text not in STANDARD_WEIGHERS:
            name, multiplier = _multiplied(text)
            made = _factory("weighers", name, WEIGHERS_GROUP, STANDARD_WEIGHERS)(multiplier)
            loaded[text] = _checked("weighers", name, made, _OF_WEIGHERS)
    return loaded


def _multiplied(text: str) -> tuple[str, float]:
    name, _, number = (part.strip() for part in text.partition("="))
    if name in STANDARD_WEIGHERS:
        raise ValueError(f"weighers has {text!r}: {name} has a setting of its own, {name}_weight_multiplier")
    try:
        multiplier = float(number or 1)
    except ValueError:
        multiplier = float("nan")
    if not isfinite(multiplier) or abs(multiplier) > MULTIPLIERS_MAX:
        raise ValueError(f"weighers has {text!r}, must be NAME or NAME=NUMBER, at most {MULTIPLIERS_MAX:g}")
    return name, multiplier


def _factory(field: str, name: str, group: str, own: Iterable[str]) -> Callable[..., Any]:
    installed = {each.name: each for each in entry_points(group=group)}
    if name not in installed:
        known = ", ".join((*own, *sorted(installed)))
        raise ValueError(
            f"{field} names {name!r}, must be among {known}; other packages bring more by {group!r}"
        )
    try:
        loaded: Callable[..., Any] = installed[name].load()
    except (ImportError, AttributeError) as problem:
        raise ValueError(f"{field} names {name!r}, which cannot be imported: {problem}") from problem
    return loaded


def _checked(field: str, name: str, made: Any, parts: Iterable[str]) -> Any:
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        raise ValueError(
            f"{field} names {name!r}, which has no {', '.join(missing)}: it is none of the {field}"
        )
    return made
