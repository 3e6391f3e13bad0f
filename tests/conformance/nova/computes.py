"""Nova's compute service for many hosts in one process, with its fake driver: `python -m tests.conformance.nova.computes CONFIG DRIVER HOST...`.

The Python of Nova's environment runs it. Each host has a compute service of its own, as if it were a machine: its own queues,
resource tracker and driver. It prints a line when all have started.
"""

# Green threads: a native thread per queue would be a thousand for two hundred hosts.
# isort: off
import os

os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "false"
from nova import monkey_patch

monkey_patch.patch(backend="eventlet")
# isort: on

import shlex  # noqa: E402 - Nova patches the standard library before anything else is imported
import sys  # noqa: E402
import uuid  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import eventlet  # noqa: E402
import nova.compute.manager  # noqa: E402 - or the first services would import it at once
import nova.conf  # noqa: E402
import nova.db.main.api  # noqa: E402
import os_vif  # noqa: E402
from nova import config, objects, service, utils  # noqa: E402
from nova.compute import rpcapi as compute_rpcapi  # noqa: E402
from nova.conductor import rpcapi as conductor_rpcapi  # noqa: E402
from nova.objects import base  # noqa: E402
from oslo_log import log  # noqa: E402
from oslo_privsep import priv_context  # noqa: E402
from oslo_utils.fixture import uuidsentinel  # noqa: E402

STARTED = "all computes have started"
STARTING_AT_ONCE = 8
_NODES = uuid.UUID("7d0e5b6a-0000-4000-8000-000000000000")


def main(arguments: Sequence[str]) -> None:
    config_file, driver, *hosts = arguments
    config.parse_args(["nova-compute", "--config-file", config_file])
    if driver:
        nova.conf.CONF.set_override("compute_driver", driver)
    log.setup(nova.conf.CONF, "nova")
    priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
    objects.register_all()
    os_vif.initialize()
    nova.db.main.api.DISABLE_DB_ACCESS = True
    base.NovaObject.indirection_api = conductor_rpcapi.ConductorAPI()
    objects.Service.enable_min_version_cache()
    for host in hosts:
        # The fake driver's node has a random id otherwise: then a service that comes back would be another node.
        setattr(uuidsentinel, f"node_{host}", str(uuid.uuid5(_NODES, host)))
    services = [*eventlet.GreenPool(STARTING_AT_ONCE).imap(_started, hosts)]
    print(f"{STARTED}: {len(services)}", flush=True)
    while True:
        eventlet.sleep(3600)


def _started(host: str) -> Any:
    compute = service.Service.create(
        host=host,
        binary="nova-compute",
        topic=compute_rpcapi.RPC_TOPIC,
        topic_alt=compute_rpcapi.RPC_TOPIC_ALT,
    )
    compute.start()
    return compute


if __name__ == "__main__":
    main(sys.argv[1:])
