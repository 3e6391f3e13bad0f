"""The version document: which versions the service speaks. Clients read it first, without a token."""

from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.versions import NEWEST, OLDEST, version_text


async def version_document(_: Request) -> Reply:
    version = {
        "id": f"v{version_text(OLDEST)}",
        "max_version": version_text(NEWEST),
        "min_version": version_text(OLDEST),
        "status": "CURRENT",
        # Relative to the URL of this document.
        "links": [{"rel": "self", "href": ""}],
    }
    return Reply(body={"versions": [version]}, is_fresh=True)
