"""The plugins of a running scheduler after its settings have changed."""

from engine.choosing.plugin_settings import chosen_plugins
from kit.settings import SettingsFollower, tell_followers
from scheduler_worker.settings import SchedulerSettings


def test_plugins_weigh_and_limit_by_the_new_settings_wherever_they_are_held() -> None:
    settings = SchedulerSettings(image_cache_weight_multiplier=0.0)
    plugins = chosen_plugins(settings)
    before = plugins.weighs_images, len(plugins.filters), len(plugins.weighers)
    kept = SettingsFollower(settings, lambda fresh: plugins.become(chosen_plugins(fresh)))
    fresh = SchedulerSettings(
        image_cache_weight_multiplier=2.0,
        ram_weight_multiplier=3.5,
        instances_per_host_max=7,
        host_subset_size=4,
    )

    tell_followers(settings, fresh)

    assert kept.settings is settings
    assert before[0] is False
    assert (plugins.weighs_images, len(plugins.filters), len(plugins.weighers)) == (True, *before[1:])
    assert (plugins.instances_max, plugins.subset) == (7, 4)
    assert 3.5 in {each.multiplier for each in plugins.weighers}
