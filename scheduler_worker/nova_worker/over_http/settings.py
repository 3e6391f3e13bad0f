"""The settings of the placement in which is claimed for a Nova."""

from typing import Annotated

from msgspec import Meta

from bus.configuration.addresses import HttpUrl
from bus.configuration.sections import Seconds, Section
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
