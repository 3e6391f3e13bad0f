"""The real openstack-placement, called over HTTP without a socket: it reads a line of requests and prints a line of
answers.

It is a process of its own, because it has one database per process. An empty line empties its books.
"""

import json
import logging
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from oslo_config import cfg
from placement import conf, db_api, deploy
from placement.db.sqlalchemy import migration, models
from webob import Request

from tests.conformance.requests_asked import Asked, Told


class Upstream:
    def __init__(self, directory: Path) -> None:
        config = cfg.ConfigOpts()
        conf.register_opts(config)
        config.set_override("connection", f"sqlite:///{directory}/placement.db", group="placement_database")
        config.set_override("auth_strategy", "noauth2", group="api")
        config.set_override("enforce_new_defaults", False, group="oslo_policy")
        config([], default_config_files=[])
        db_api.configure(config)
        migration.create_schema(db_api.get_placement_engine())
        deploy.update_database(config)
        self._app = deploy.loadapp(config)

    def ask(self, asked: Asked) -> Told:
        request = Request.blank(asked.target, method=asked.method)
        for name, value in asked.headers:
            request.headers[name] = value
        if asked.body is not None:
            request.body = asked.body.encode()
        response = request.get_response(self._app)
        return Told(
            status=response.status_int,
            media=response.content_type or "",
            body=response.text,
            headers={name.lower(): value for name, value in response.headers.items()},
        )

    def wipe(self) -> None:
        with db_api.get_placement_engine().begin() as connection:
            for model in (
                *(models.Allocation, models.Consumer, models.Inventory),
                *(models.ResourceProviderTrait, models.ResourceProviderAggregate, models.PlacementAggregate),
                *(models.Project, models.User, models.ConsumerType),
            ):
                connection.execute(model.__table__.delete())
            providers = models.ResourceProvider.__table__
            connection.execute(providers.update().values(parent_provider_id=None, root_provider_id=None))
            connection.execute(providers.delete())
            for names in (models.Trait.__table__, models.ResourceClass.__table__):
                connection.execute(names.delete().where(names.c.name.like("CUSTOM%")))


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    decoder = msgspec.json.Decoder(list[Asked])
    with TemporaryDirectory() as directory:
        upstream = Upstream(Path(directory))
        for line in sys.stdin:
            if not line.strip():
                upstream.wipe()
                print("[]", flush=True)
                continue
            told = [upstream.ask(one) for one in decoder.decode(line)]
            print(json.dumps([msgspec.to_builtins(one) for one in told]), flush=True)


if __name__ == "__main__":
    main()
