"""The real openstack-placement, served over HTTP at an address that it prints.

It is a process of its own, because it has one database per process. `DELETE /books`, which it does not know, empties its books.
"""

import logging
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from oslo_config import cfg
from placement import conf, db_api, deploy
from placement.db.sqlalchemy import migration, models


class Server(WSGIServer):
    request_queue_size = 128


class Handler(WSGIRequestHandler):
    def get_environ(self) -> dict[str, Any]:
        environ = super().get_environ()
        if self.headers["content-type"] is None:
            # It would be `text/plain`.
            del environ["CONTENT_TYPE"]
        return environ

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def application(directory: Path) -> Callable[..., Iterable[bytes]]:
    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config.set_override("connection", f"sqlite:///{directory}/placement.db", group="placement_database")
    config.set_override("auth_strategy", "noauth2", group="api")
    config.set_override("enforce_new_defaults", False, group="oslo_policy")
    config([], default_config_files=[])
    db_api.configure(config)
    migration.create_schema(db_api.get_placement_engine())
    deploy.update_database(config)
    placement = deploy.loadapp(config)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("DELETE", "/books"):
            wipe()
            start_response("204 No Content", [])
            return ()
        answered: Iterable[bytes] = placement(environ, start_response)
        return answered

    return answer


def wipe() -> None:
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
    with (
        TemporaryDirectory() as directory,
        make_server("127.0.0.1", 0, application(Path(directory)), Server, Handler) as server,
    ):
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
