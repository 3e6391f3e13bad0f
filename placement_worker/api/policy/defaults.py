"""Upstream's rules and their defaults.

*secure* is upstream's name for the new defaults. *legacy* also allows what the old ones allowed; that differs only where a
rule was narrowed to services.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Endpoints check the rules named placement:...; the other rules are parts of these.
ENDPOINT: Final = "placement:"

_ADMIN_OR_SERVICE: Final = "rule:admin_or_service_api"
_OF_ADMINS_AND_SERVICES: Final = (
    "placement:allocation_candidates:list",
    "placement:allocations:delete",
    "placement:allocations:list",
    "placement:allocations:manage",
    "placement:allocations:update",
    "placement:resource_classes:create",
    "placement:resource_classes:delete",
    "placement:resource_classes:list",
    "placement:resource_classes:show",
    "placement:resource_classes:update",
    "placement:resource_providers:aggregates:list",
    "placement:resource_providers:aggregates:update",
    "placement:resource_providers:allocations:list",
    "placement:resource_providers:create",
    "placement:resource_providers:delete",
    "placement:resource_providers:inventories:create",
    "placement:resource_providers:inventories:delete",
    "placement:resource_providers:inventories:list",
    "placement:resource_providers:inventories:show",
    "placement:resource_providers:inventories:update",
    "placement:resource_providers:list",
    "placement:resource_providers:show",
    "placement:resource_providers:traits:delete",
    "placement:resource_providers:traits:list",
    "placement:resource_providers:traits:update",
    "placement:resource_providers:update",
    "placement:resource_providers:usages",
    "placement:traits:delete",
    "placement:traits:list",
    "placement:traits:show",
    "placement:traits:update",
)

SECURE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "admin_api": "role:admin",
        "service_api": "role:service",
        "admin_or_service_api": "role:admin or role:service",
        "project_reader_api": "role:reader and project_id:%(project_id)s",
        "admin_or_project_reader_or_service_api": "role:admin or rule:project_reader_api or role:service",
        **dict.fromkeys(_OF_ADMINS_AND_SERVICES, _ADMIN_OR_SERVICE),
        # A project's own users may see what it uses.
        "placement:usages": "rule:admin_or_project_reader_or_service_api",
        # A reshape moves what others hold, so it is for services that know why.
        "placement:reshaper:reshape": "rule:service_api",
    }
)
LEGACY: Final[Mapping[str, str]] = MappingProxyType(
    {**SECURE, "service_api": "role:service or rule:admin_api"}
)
OPEN: Final[Mapping[str, str]] = MappingProxyType(
    {name: "@" if name.startswith(ENDPOINT) else rule for name, rule in SECURE.items()}
)
