"""The settings of the placement in which is claimed for a Nova."""

from typing import Annotated

from msgspec import Meta

from bus.configuration.addresses import HttpUrl
from bus.configuration.sections import Count, Seconds, Section
from bus.rest.login import RestService
from bus.rest.settings import RestSettings


class NovaPlacementSettings(RestSettings, frozen=True, kw_only=True):
    url: Annotated[
        HttpUrl,
        Meta(
            description="The placement for which `moor run nova-scheduler` schedules, ours or OpenStack's: http://host:port/path. Empty: the "
            "address in Keystone's catalogue; auth must be keystone then."
        ),
    ] = ""
    admin_token_secret: Annotated[
        str,
        Meta(
            description="A fixed token, for a placement without Keystone: `auth_type = admin_token` and `token` of nova.conf."
        ),
    ] = ""
    refresh_s: Annotated[
        Seconds,
        Meta(
            description="How often placement is asked which providers have changed. Shorter chooses by newer data, for more requests; it is "
            "asked anyway after a conflict, and before a request is refused."
        ),
    ] = 5.0
    verify_s: Annotated[
        Seconds,
        Meta(
            description="How often the inventories, traits and aggregates of providers that others have changed are read again. Shorter sees "
            "new ones sooner, for four requests a provider."
        ),
    ] = 60.0
    reads_at_once: Annotated[
        Count,
        Meta(
            description="How many providers are read at once. More is faster at the start; fewer loads placement less."
        ),
    ] = 8
    claims_at_once: Annotated[
        Count,
        Meta(
            description="How many claims are written at once. More answers large batches sooner; fewer makes fewer conflicts."
        ),
    ] = 8
    conflict_tries_max: Annotated[
        Count,
        Meta(
            description="How often one claim is written that conflicts with others on its provider; then another host is tried. More insists on "
            "the best host."
        ),
    ] = 4
    conflict_pause_s_max: Annotated[
        Seconds,
        Meta(
            description="The longest pause between such tries, drawn at random. Longer lets many schedulers pass each other; shorter answers "
            "sooner."
        ),
    ] = 0.5

    @property
    def is_named(self) -> bool:
        """Is there a placement to ask?"""
        return bool(self.url) or self.auth == "keystone"


NOVA_PLACEMENT = Section(
    "nova_placement",
    NovaPlacementSettings,
    "the placement of `moor run nova-scheduler`",
    # `nova_placement_db`, which `moor import nova` reads.
    others=("db",),
)
PLACEMENT_SERVICE = RestService(
    name="Placement",
    section=NOVA_PLACEMENT,
    url_key="nova_placement.url",
    types=("placement",),
    version="/",
)
