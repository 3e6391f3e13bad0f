"""The settings of all workers, by section. Only commands that run workers, or show and check their settings, import them."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from msgspec import Struct, structs

from bus.settings import BUS, BusSettings
from cell_conductor.settings import CONDUCTOR, ConductorSettings
from compute_sim.libvirt.settings import LIBVIRT, LibvirtSettings
from compute_sim.settings import COMPUTE, ComputeSettings
from ironic_sync.settings import IRONIC_DAEMONS, IronicSettings
from keeper.settings import KEEPER, KeeperSettings
from kit.database_settings import DATABASE, DatabaseSettings
from kit.keystone import OPENSTACK
from kit.settings import Section, Stated, text_of
from placement_worker.settings import PLACEMENT, PlacementSettings
from scheduler_worker.settings import SCHEDULER, SchedulerSettings

__all__ = [
    "BUS",
    "COMPUTE",
    "CONDUCTOR",
    "DATABASE",
    "IRONIC_DAEMONS",
    "KEEPER",
    "LIBVIRT",
    "OPENSTACK",
    "PLACEMENT",
    "SCHEDULER",
    "SECTIONS",
    "CloudSettings",
    "by_section",
    "environment_of",
    "of_cloud",
]

# Those of other packages are found by entry points.
SECTIONS: Mapping[str, Section[Any]] = {
    section.name: section
    for section in (
        SCHEDULER,
        CONDUCTOR,
        PLACEMENT,
        COMPUTE,
        LIBVIRT,
        IRONIC_DAEMONS,
        OPENSTACK,
        KEEPER,
        BUS,
        DATABASE,
        *(each.load() for each in entry_points(group="moorage.sections")),
    )
}
_BY_KIND = {section.kind: section for section in SECTIONS.values()}


class CloudSettings(Struct, frozen=True, kw_only=True):
    """The settings of all workers in one process."""

    placement: PlacementSettings = PlacementSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    conductor: ConductorSettings = ConductorSettings()
    compute: ComputeSettings = ComputeSettings()
    libvirt: LibvirtSettings = LibvirtSettings()
    ironic: IronicSettings = IronicSettings()
    keeper: KeeperSettings = KeeperSettings()
    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()


def by_section(settings: CloudSettings) -> list[tuple[Section[Any], Any]]:
    return [(_BY_KIND[type(each)], each) for each in structs.asdict(settings).values()]


def of_cloud(
    read: Callable[..., Any], base: CloudSettings, flags: Mapping[str, Mapping[str, Stated]] | None = None
) -> CloudSettings:
    """The settings of all workers: what `read` finds of each section, and the command's `flags` (by section), over `base`."""
    sections = {name: (_BY_KIND[type(each)], each) for name, each in structs.asdict(base).items()}
    return CloudSettings(
        **{
            name: read(section, each, (flags or {}).get(section.name))
            for name, (section, each) in sections.items()
        }
    )


def environment_of(settings: CloudSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give these settings to worker processes, which read no settings file and no flags.

    A setting is left out if the processes have it anyway, from `environment` or as a default.
    """
    variables: dict[str, str] = {}
    for section, each in by_section(settings):
        read = section.read(environment)
        variables |= {
            section.variable(field): text_of(getattr(each, field))
            for field in section.settings
            if getattr(each, field) != getattr(read, field)
        }
    return variables
