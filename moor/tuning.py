"""The settings of all workers, as the `moor` command reads them: flags, then variables, then a file, then the defaults."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct, structs

from bus.configuration.database_settings import SECTION as DATABASE
from bus.configuration.database_settings import DatabaseSettings
from bus.configuration.settings import BusSettings
from bus.configuration.tuning import BUS, Section, Tuned, settings_in, settings_of, text_of, tuned_in
from cell_conductor.settings import SECTION as CONDUCTOR
from cell_conductor.settings import ConductorSettings
from compute_sim.settings import SECTION as COMPUTE
from compute_sim.settings import ComputeSettings
from ironic_sync.settings import SECTION as IRONIC
from ironic_sync.settings import IronicSettings
from placement_worker.api.settings import SECTION as PLACEMENT_API
from placement_worker.settings import SECTION as PLACEMENT
from placement_worker.settings import PlacementSettings
from scheduler_worker.settings import SECTION as SCHEDULER
from scheduler_worker.settings import SchedulerSettings

__all__ = [
    "BUS",
    "COMPUTE",
    "CONDUCTOR",
    "DATABASE",
    "IRONIC",
    "PLACEMENT",
    "PLACEMENT_API",
    "SCHEDULER",
    "SECTIONS",
    "CloudSettings",
    "Tuning",
    "environment_of",
]

S = TypeVar("S", bound=Struct)

SECTIONS: Mapping[str, Section[Any]] = {
    section.name: section
    for section in (SCHEDULER, CONDUCTOR, PLACEMENT, PLACEMENT_API, COMPUTE, IRONIC, BUS, DATABASE)
}
_BY_KIND = {section.kind: section for section in SECTIONS.values()}


class CloudSettings(Struct, frozen=True, kw_only=True):
    """The settings of all workers in one process."""

    placement: PlacementSettings = PlacementSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    conductor: ConductorSettings = ConductorSettings()
    compute: ComputeSettings = ComputeSettings()
    ironic: IronicSettings = IronicSettings()
    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()


class Tuning(Struct, frozen=True):
    """The workers' settings in the variables (`environment`) and in the settings file (`written`, by section)."""

    environment: Mapping[str, str]
    written: Mapping[str, Mapping[str, Tuned]]

    def stated(self, section: Section[Any]) -> dict[str, Tuned]:
        return {**self.written.get(section.name, {}), **tuned_in(section, self.environment)}

    def of(self, section: Section[S], base: S | None = None, flags: Mapping[str, Tuned] | None = None) -> S:
        """The settings of one section. For each setting the first of these counts that has it: `flags`, environment
        variables, the settings file, `base`.

        `base` has the running command's own defaults. Without it, the defaults are the worker's. A wrong value raises
        BadSetting.
        """
        return settings_of(base or section.kind(), section, {**self.stated(section), **(flags or {})})

    def of_cloud(
        self, base: CloudSettings, flags: Mapping[str, Mapping[str, Tuned]] | None = None
    ) -> CloudSettings:
        """The settings of all workers: variables, the settings file and the command's `flags` (by section) over `base`."""
        sections = {name: (_BY_KIND[type(each)], each) for name, each in structs.asdict(base).items()}
        return CloudSettings(
            **{
                name: self.of(section, each, (flags or {}).get(section.name))
                for name, (section, each) in sections.items()
            }
        )


def environment_of(settings: CloudSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give these settings to worker processes, which read no settings file and no flags.

    A setting is left out if the processes have it anyway, from `environment` or as a default.
    """
    variables: dict[str, str] = {}
    for each in structs.asdict(settings).values():
        section = _BY_KIND[type(each)]
        read = settings_in(environment, section)
        variables |= {
            section.variable(field): text_of(getattr(each, field))
            for field in section.types
            if getattr(each, field) != getattr(read, field)
        }
    return variables
