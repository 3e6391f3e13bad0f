"""A user that is bound to a project reads that project's usage and nothing else, for each way of authentication."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import bcrypt
import httpx
import pytest

from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.auth import Authentication, BasicAuthentication, BelievedToken, users_in
from placement_worker.api.policy import policy_named
from placement_worker.api.routes import routes_of
from placement_worker.api.service import PlacementApp
from placement_worker.api.values import version_text
from placement_worker.store import PlacementStore
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
from tests.api.whole_app import HOST, WEB, server_over
from tests.contracts.stores import open_store

pytestmark = pytest.mark.asyncio

PASSWORD = "open sesame"  # noqa: S105
BOUND = base64.b64encode(f"ron:{PASSWORD}".encode()).decode()
IDENTITIES = {
    "basic": {"authorization": f"Basic {BOUND}"},
    "noauth2": {"x-auth-token": "ron:shop", "x-roles": "reader"},
    "member": {"x-auth-token": "ron:shop", "x-roles": "reader,member"},
}


def authentication(kind: str, directory: Path) -> Authentication:
    if kind != "basic":
        return BelievedToken()
    file = directory / "users"
    file.write_text(f"ron:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}:shop\n")
    return BasicAuthentication(users_in(file))


@asynccontextmanager
async def asking(
    store: PlacementStore, auth: Authentication, policy: str, headers: dict[str, str]
) -> AsyncIterator[httpx.AsyncClient]:
    desk, view = WriteBatcher(store, STANDARD, lambda: datetime.now(UTC)), ProviderView(store)
    app = PlacementApp(routes_of(desk, view, store, STANDARD), auth, policy_named(policy))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://placement", headers=headers
    ) as client:
        client.headers["openstack-api-version"] = "placement 1.39"
        yield client
        await view.close()
        await desk.close()


@pytest.mark.parametrize("policy", ["legacy", "secure"])
@pytest.mark.parametrize("kind", IDENTITIES)
async def test_a_project_reads_its_own_usages_and_nothing_else(
    kind: str, policy: str, tmp_path: Path
) -> None:
    async with (
        open_store("memory") as store,
        server_over(store) as admin,
        asking(store, authentication(kind, tmp_path), policy, IDENTITIES[kind]) as client,
    ):
        await admin.fill()
        own = await client.get("/usages", params={"project_id": "shop"})
        assert own.json() == {"usages": {"INSTANCE": {"VCPU": 1, "consumer_count": 1}}}
        for query in (
            "project_id=bank",
            "project_id=shop&project_id=bank",
            "project_id=bank&project_id=shop",
            "project_id=shop&project%5Fid=bank",
            "project_id=",
            "project_id=" + "x" * 300,
        ):
            assert (await client.get(f"/usages?{query}")).status_code == 403, query

        for route in routes_of(None, None, None, STANDARD):  # type: ignore[arg-type]  # nothing is asked of them
            if route.path == "/usages":
                continue
            path = route.path.replace("{uuid}", HOST).replace("{consumer_uuid}", WEB)
            path = path.replace("{resource_class}", "VCPU").replace("{name}", "CUSTOM_X")
            for suffix in ("", "?project_id=shop"):
                answer = await client.request(
                    route.method,
                    f"{path}{suffix}",
                    headers={"openstack-api-version": f"placement {version_text(route.until)}"},
                    json=None if route.body is None else {},
                )
                assert answer.status_code == 403, (route.method, path, answer.text)
                assert HOST not in answer.text


async def test_a_user_without_a_project_is_an_administrator(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"ron:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    auth = BasicAuthentication(users_in(file))
    async with (
        open_store("memory") as store,
        asking(store, auth, "legacy", IDENTITIES["basic"]) as client,
    ):
        assert (await client.get("/resource_providers")).status_code == 200
        assert (await client.get("/usages?project_id=bank")).status_code == 200
