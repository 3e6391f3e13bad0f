"""The configuration files of a whole Nova: one nova.conf for the API level, one for each cell, and the API's pipeline."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

# The level of Nova's services that belongs to no cell.
API_LEVEL = "api"


class NovaPlaces(Struct, frozen=True):
    """Where the servers are that a Nova uses, and how it is tuned."""

    directory: Path
    amqp: str
    database: str
    placement: str
    stub: str
    # The placement that computes ask, if that is another server with the same books.
    computes_placement: str = ""
    options: Mapping[str, Mapping[str, str]] = {}
    report_s: int = 5
    down_s: int = 30
    notifies: bool = True

    def transport(self, level: str) -> str:
        """Nova's own broker URL of a level: each cell has a virtual host of its own, as each has a broker in large clouds."""
        return f"rabbit://guest:guest@{self.amqp}/{virtual_host(level)}"

    def database_url(self, name: str, user: str = "nova") -> str:
        return f"mysql+pymysql://{user}@{self.database}/{name}"


def virtual_host(level: str) -> str:
    return "nova" if level == API_LEVEL else f"nova_{level}"


def database_of(level: str) -> str:
    """Instances that no host could be found for are in cell0, which has no services."""
    return "nova_cell0" if level == API_LEVEL else f"nova_{level}"


def nova_conf(places: NovaPlaces, level: str, *, user: str = "nova") -> str:
    """Nova's configuration on this level, for services that work in the database as this user."""
    placement = (level != API_LEVEL and places.computes_placement) or places.placement
    notifications = {
        "driver": "messagingv2" if places.notifies else "noop",
        # Those of all cells on one virtual host.
        "transport_url": places.transport(API_LEVEL),
    }
    sections: dict[str, dict[str, str]] = {
        "DEFAULT": {
            "host": f"{level}-host",
            "my_ip": "127.0.0.1",
            "state_path": str(places.directory),
            "transport_url": places.transport(level),
            "compute_driver": "fake.FakeDriver",
            "report_interval": str(places.report_s),
            "service_down_time": str(places.down_s),
            "rpc_response_timeout": "60",
            "sync_power_state_interval": "-1",
            "heal_instance_info_cache_interval": "-1",
            "running_deleted_instance_action": "noop",
            "reserved_host_memory_mb": "0",
            "allow_resize_to_same_host": "false",
            "cpu_allocation_ratio": "1.0",
            "ram_allocation_ratio": "1.0",
            "disk_allocation_ratio": "1.0",
            "max_concurrent_builds": "10",
            "log_options": "false",
        },
        "oslo_concurrency": {"lock_path": str(places.directory / "locks")},
        "oslo_messaging_notifications": notifications,
        "notifications": {
            "notification_format": "versioned" if places.notifies else "unversioned",
            "notify_on_state_change": "vm_state",
        },
        "oslo_messaging_rabbit": {"heartbeat_timeout_threshold": "60"},
        "database": {"connection": places.database_url(database_of(level), user), "max_pool_size": "20"},
        "placement": {
            "auth_type": "admin_token",
            "endpoint": placement,
            "endpoint_override": placement,
            "token": "admin",
        },
        "neutron": {
            "auth_type": "admin_token",
            "endpoint": places.stub,
            "endpoint_override": places.stub,
            "token": "admin",
        },
        "glance": {"endpoint_override": places.stub, "num_retries": "1"},
        # The late check of server groups and that of a live migration go up from the cells to this database.
        "api_database": {"connection": places.database_url("nova_api", user), "max_pool_size": "20"},
        "vnc": {"enabled": "false"},
        "api": {"auth_strategy": "keystone"},
        "quota": {
            "instances": "-1",
            "cores": "-1",
            "ram": "-1",
            "server_groups": "-1",
            "server_group_members": "-1",
        },
        "conductor": {"workers": "1"},
        "scheduler": {"workers": "1", "discover_hosts_in_cells_interval": "-1"},
        "filter_scheduler": {"track_instance_changes": "true"},
    }
    for section, options in places.options.items():
        sections.setdefault(section, {}).update(options)
    return "".join(
        f"[{section}]\n{''.join(f'{name} = {value}{chr(10)}' for name, value in options.items())}\n"
        for section, options in sections.items()
    )


def write_configuration(places: NovaPlaces, programs: Path, cells: tuple[str, ...]) -> None:
    """Each level's nova.conf in a directory of its own. There is no Keystone: header_identity.py is in its stead."""
    (places.directory / "locks").mkdir(exist_ok=True)
    pipeline = (
        (programs.parent / "etc" / "nova" / "api-paste.ini")
        .read_text()
        .replace(
            "keystonemiddleware.auth_token:filter_factory",
            "tests.conformance.nova.header_identity:filter_factory",
        )
    )
    for level in (API_LEVEL, *cells):
        place = places.directory / level
        place.mkdir()
        (place / "nova.conf").write_text(nova_conf(places, level))
        (place / "api-paste.ini").write_text(pipeline)
    # Under a user of its own the database counts what the scheduler makes it work.
    scheduler = places.directory / "scheduler"
    scheduler.mkdir()
    (scheduler / "nova.conf").write_text(nova_conf(places, API_LEVEL, user="scheduler"))
    (places.directory / "compute_id").write_text("7d0e5b6a-0000-4000-8000-000000000001")


# Cells are mapped under such a template, so that each service uses the user of its own configuration.
CELL_DATABASE = "{scheme}://{username}@{hostname}:{port}/"
