"""The real openstack-placement, asked for candidates among given providers: it reads a line and prints a line.

It is a process of its own, because it has one database per process, and prints many irrelevant warnings. Providers are
written through its own objects; questions go through its own HTTP application.
"""

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec
from msgspec import structs
from oslo_config import cfg
from placement import conf, context, db_api, deploy
from placement.db.sqlalchemy import migration, models
from placement.objects import allocation, consumer, consumer_type, inventory, project, resource_provider, user
from placement.objects import trait as traits
from webob import Request

from engine.inventories import InventoryState, ProviderState
from tests.conformance.worlds_asked import Question, World

# Large enough for the usage that is written before the inventory gets its real size.
ROOMY = InventoryState(total=1_000)


class Upstream:
    def __init__(self, directory: Path) -> None:
        config = cfg.ConfigOpts()
        conf.register_opts(config)
        config.set_override("connection", f"sqlite:///{directory}/placement.db", group="placement_database")
        config.set_override("auth_strategy", "noauth2", group="api")
        config([], default_config_files=[])
        db_api.configure(config)
        migration.create_schema(db_api.get_placement_engine())
        deploy.update_database(config)
        self._app = deploy.loadapp(config)
        self._context = context.RequestContext(user_id="user", project_id="project")
        self._context.config = config
        self._owner = self._owners()

    def answer(self, world: World) -> list[object]:
        self._wipe()
        for name in world.traits:
            self._trait(name)
        for state in world.states:
            self._write(state)
        return [self._ask(question) for question in world.questions]

    def _ask(self, question: Question) -> object:
        """None if it could not answer."""
        request = Request.blank(f"/allocation_candidates?{question.query}")
        request.headers["x-auth-token"] = "admin"
        request.headers["openstack-api-version"] = f"placement {question.version}"
        try:
            response = request.get_response(self._app)
        except KeyError:
            # Some questions about sharing providers make it fail.
            return None
        if response.status_int == 500:
            return None
        assert response.status_int == 200, (question, response.text)
        return response.json["allocation_requests"]

    def _owners(self) -> dict[str, object]:
        someone = user.User(self._context, external_id="user")
        someone.create()
        something = project.Project(self._context, external_id="project")
        something.create()
        kind = consumer_type.ConsumerType(self._context, name="INSTANCE")
        kind.create()
        return {"user": someone, "project": something, "consumer_type_id": kind.id}

    def _write(self, state: ProviderState) -> None:
        provider = resource_provider.ResourceProvider(
            self._context,
            uuid=str(state.id),
            name=state.name,
            parent_provider_uuid=None if state.parent is None else str(state.parent),
        )
        provider.create()
        if state.inventories:
            provider.set_inventory(list(self._inventories(provider, state, is_final=False)))
            self._use(provider, state)
            provider.set_inventory(list(self._inventories(provider, state, is_final=True)))
        provider.set_traits([self._trait(name) for name in state.traits])
        provider.set_aggregates([str(each) for each in state.aggregates])

    def _inventories(
        self, provider: resource_provider.ResourceProvider, state: ProviderState, *, is_final: bool
    ) -> Iterator[inventory.Inventory]:
        for resource, each in state.inventories.items():
            bounds = structs.asdict(each if is_final else ROOMY)
            del bounds["used"]
            yield inventory.Inventory(resource_provider=provider, resource_class=resource, **bounds)

    def _use(self, provider: resource_provider.ResourceProvider, state: ProviderState) -> None:
        used = {resource: each.used for resource, each in state.inventories.items() if each.used}
        if not used:
            return
        holder = consumer.Consumer(self._context, uuid=str(UUID(int=state.id.int + (1 << 64))), **self._owner)
        holder.create()
        allocation.replace_all(
            self._context,
            [
                allocation.Allocation(
                    resource_provider=provider, resource_class=resource, consumer=holder, used=amount
                )
                for resource, amount in used.items()
            ],
        )

    def _trait(self, name: str) -> traits.Trait:
        try:
            return traits.Trait.get_by_name(self._context, name)
        except Exception:  # noqa: BLE001  (whatever it raises for what is not there)
            made = traits.Trait(self._context, name=name)
            made.create()
            return made

    def _wipe(self) -> None:
        with db_api.get_placement_engine().begin() as connection:
            for model in (
                *(models.Allocation, models.Consumer, models.Inventory),
                *(models.ResourceProviderTrait, models.ResourceProviderAggregate),
            ):
                connection.execute(model.__table__.delete())
            providers = models.ResourceProvider.__table__
            connection.execute(providers.update().values(parent_provider_id=None, root_provider_id=None))
            connection.execute(providers.delete())


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    decoder = msgspec.json.Decoder(World)
    with TemporaryDirectory() as directory:
        upstream = Upstream(Path(directory))
        for line in sys.stdin:
            print(json.dumps(upstream.answer(decoder.decode(line))), flush=True)


if __name__ == "__main__":
    main()
