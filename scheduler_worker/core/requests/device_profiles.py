"""Device profiles in flavors. A flavor names one by `accel:device_profile`; when a request is read, its groups become groups of the
flavor. So the flavor that an instance keeps has them in full, whatever becomes of the stored profile.
"""

from collections.abc import Iterator, Mapping

from msgspec import structs

from bus.messages.build import Flavor
from bus.messages.device_profiles import DeviceProfile
from scheduler_worker.core.requests.groups_grammar import GROUP_POLICY
from scheduler_worker.core.requests.parts import RequestProblem

PROFILE = "accel:device_profile"
# The suffixes of its groups begin so.
GROUP = "_DEVICE_PROFILE_"


def profile_to_find(flavor: Flavor | None) -> str:
    """The name of the device profile whose groups the flavor does not have yet; empty if there is none to find."""
    if flavor is None or PROFILE not in flavor.extra_specs or any(map(_is_of_profile, flavor.extra_specs)):
        return ""
    return flavor.extra_specs[PROFILE]


def with_profile(flavor: Flavor, profile: DeviceProfile) -> Flavor:
    """The flavor with the groups of the profile that it names."""
    groups = dict(_keys_of(profile))
    policy = {} if GROUP_POLICY in flavor.extra_specs else {GROUP_POLICY: "none"}
    return structs.replace(flavor, extra_specs={**flavor.extra_specs, **policy, **groups})


def without_profile(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Extra specs without the groups of a profile, and without its name."""
    return {key: value for key, value in extra_specs.items() if key != PROFILE and not _is_of_profile(key)}


def problems_of_profile(flavor: Flavor) -> Iterator[RequestProblem]:
    if PROFILE in flavor.extra_specs and not any(map(_is_of_profile, flavor.extra_specs)):
        name = flavor.extra_specs[PROFILE]
        yield RequestProblem(
            f"flavor.extra_specs.{PROFILE}",
            name,
            "there is no device profile of this name; `moor device-profile list` shows all",
        )


def _keys_of(profile: DeviceProfile) -> Iterator[tuple[str, str]]:
    for number, group in enumerate(profile.groups):
        for resource, amount in group.resources.items():
            yield f"resources{GROUP}{number}:{resource}", str(amount)
        for word, traits in (("required", group.required), ("forbidden", group.forbidden)):
            for trait in traits:
                yield f"trait{GROUP}{number}:{trait}", word


def _is_of_profile(key: str) -> bool:
    return key.startswith((f"resources{GROUP}", f"trait{GROUP}"))
