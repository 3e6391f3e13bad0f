"""Upstream's rules by name: the requests that each one guards, and its default text.

*secure* is what upstream calls the new defaults. *legacy* also allows what upstream's old defaults allowed; the two differ
only where upstream has narrowed a rule to services.
"""

from collections.abc import Mapping
from typing import Final

# Endpoints ask the rules named placement:...; those rules refer to the others.
ENDPOINT: Final = "placement:"

# What each rule allows, then the requests that ask it.
DOCUMENTED: Final[Mapping[str, tuple[str, ...]]] = {
    "admin_api": ("The caller is an administrator.",),
    "service_api": ("The caller is a service.",),
    "admin_or_service_api": ("The caller is an administrator or a service.",),
    "project_reader_api": ("The caller reads for the project that the request names.",),
    "admin_or_project_reader_or_service_api": (
        "The caller is an administrator or a service, or reads for the project that the request names.",
    ),
    "placement:allocation_candidates:list": (
        "Find providers that fit a request.",
        "GET /allocation_candidates",
    ),
    "placement:allocations:delete": ("Release a consumer.", "DELETE /allocations/{consumer_uuid}"),
    "placement:allocations:list": ("Show what a consumer holds.", "GET /allocations/{consumer_uuid}"),
    "placement:allocations:manage": ("Replace what several consumers hold.", "POST /allocations"),
    "placement:allocations:update": (
        "Replace what one consumer holds.",
        "PUT /allocations/{consumer_uuid}",
    ),
    "placement:reshaper:reshape": ("Move inventories together with their allocations.", "POST /reshaper"),
    "placement:resource_classes:create": ("Create a resource class.", "POST /resource_classes"),
    "placement:resource_classes:delete": ("Delete a resource class.", "DELETE /resource_classes/{name}"),
    "placement:resource_classes:list": ("List the resource classes.", "GET /resource_classes"),
    "placement:resource_classes:show": ("Show a resource class.", "GET /resource_classes/{name}"),
    "placement:resource_classes:update": (
        "Create or rename a resource class.",
        "PUT /resource_classes/{name}",
    ),
    "placement:resource_providers:aggregates:list": (
        "List a provider's aggregates.",
        "GET /resource_providers/{uuid}/aggregates",
    ),
    "placement:resource_providers:aggregates:update": (
        "Replace a provider's aggregates.",
        "PUT /resource_providers/{uuid}/aggregates",
    ),
    "placement:resource_providers:allocations:list": (
        "List what consumers hold of a provider.",
        "GET /resource_providers/{uuid}/allocations",
    ),
    "placement:resource_providers:create": ("Create a provider.", "POST /resource_providers"),
    "placement:resource_providers:delete": ("Delete a provider.", "DELETE /resource_providers/{uuid}"),
    "placement:resource_providers:inventories:create": (
        "Add one inventory to a provider.",
        "POST /resource_providers/{uuid}/inventories",
    ),
    "placement:resource_providers:inventories:delete": (
        "Delete one or all inventories of a provider.",
        "DELETE /resource_providers/{uuid}/inventories",
        "DELETE /resource_providers/{uuid}/inventories/{resource_class}",
    ),
    "placement:resource_providers:inventories:list": (
        "List a provider's inventories.",
        "GET /resource_providers/{uuid}/inventories",
    ),
    "placement:resource_providers:inventories:show": (
        "Show one inventory of a provider.",
        "GET /resource_providers/{uuid}/inventories/{resource_class}",
    ),
    "placement:resource_providers:inventories:update": (
        "Replace one or all inventories of a provider.",
        "PUT /resource_providers/{uuid}/inventories",
        "PUT /resource_providers/{uuid}/inventories/{resource_class}",
    ),
    "placement:resource_providers:list": ("List the providers.", "GET /resource_providers"),
    "placement:resource_providers:show": ("Show a provider.", "GET /resource_providers/{uuid}"),
    "placement:resource_providers:traits:delete": (
        "Take all traits from a provider.",
        "DELETE /resource_providers/{uuid}/traits",
    ),
    "placement:resource_providers:traits:list": (
        "List a provider's traits.",
        "GET /resource_providers/{uuid}/traits",
    ),
    "placement:resource_providers:traits:update": (
        "Replace a provider's traits.",
        "PUT /resource_providers/{uuid}/traits",
    ),
    "placement:resource_providers:update": (
        "Change a provider's name or parent.",
        "PUT /resource_providers/{uuid}",
    ),
    "placement:resource_providers:usages": (
        "Show how much of a provider is used.",
        "GET /resource_providers/{uuid}/usages",
    ),
    "placement:traits:delete": ("Delete a trait.", "DELETE /traits/{name}"),
    "placement:traits:list": ("List the traits.", "GET /traits"),
    "placement:traits:show": ("Ask whether a trait exists.", "GET /traits/{name}"),
    "placement:traits:update": ("Create a trait.", "PUT /traits/{name}"),
    "placement:usages": ("Show how much a project uses.", "GET /usages"),
}

SECURE: Final[Mapping[str, str]] = {
    **dict.fromkeys(DOCUMENTED, "rule:admin_or_service_api"),
    "admin_api": "role:admin",
    "service_api": "role:service",
    "admin_or_service_api": "role:admin or role:service",
    "project_reader_api": "role:reader and project_id:%(project_id)s",
    "admin_or_project_reader_or_service_api": "role:admin or rule:project_reader_api or role:service",
    # A project's own readers may see what it uses.
    "placement:usages": "rule:admin_or_project_reader_or_service_api",
    # A reshape moves what consumers hold. Only the service that owns the inventories can judge that.
    "placement:reshaper:reshape": "rule:service_api",
}
LEGACY: Final[Mapping[str, str]] = {**SECURE, "service_api": "role:service or rule:admin_api"}
OPEN: Final[Mapping[str, str]] = {
    name: "@" if name.startswith(ENDPOINT) else rule for name, rule in SECURE.items()
}
