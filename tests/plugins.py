"""The filters and weighers of the scheduler with its default settings, and with limits of each host."""

from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.choosing.plugins import Plugins


def standard_plugins(io_ops_max: int = 8, instances_max: int = 50) -> Plugins:
    """With 0, builds under way or instances are not limited."""
    return chosen_plugins(
        PluginSettings(io_ops_per_host_max=io_ops_max, instances_per_host_max=instances_max)
    )
