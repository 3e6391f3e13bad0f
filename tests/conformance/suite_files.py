"""Upstream's suite as its wheel contains it: YAML files of steps, and the kind of server that each needs."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import yaml
from msgspec import Struct

# The configuration that upstream's fixtures give their server; files without such a fixture need the default one.
_PROFILES: Final = {
    "OpenPolicyFixture": "open",
    "SecureRBACPolicyFixture": "secure",
    "CORSFixture": "cors",
}
PROFILES: Final = ("default", "secure", "open", "cors")


class SuiteFile(Struct, frozen=True):
    path: Path
    profile: str
    steps: int

    @property
    def name(self) -> str:
        return self.path.stem


def suite_files() -> Iterator[SuiteFile]:
    for path in sorted((functional_tests() / "gabbits").glob("*.yaml")):
        # gabbi's files have YAML tags of their own; only lists and names are read here.
        written = yaml.load(path.read_text(), Loader=yaml.CBaseLoader)  # noqa: S506  (upstream's, and texts alone)
        fixtures = written.get("fixtures", ())
        profile = next((_PROFILES[name] for name in fixtures if name in _PROFILES), "default")
        yield SuiteFile(path, profile, len(written["tests"]))


def functional_tests() -> Path:
    """Their directory in the wheel. The package is located, not imported: none of its code runs here."""
    found = find_spec("placement")
    assert found is not None, (
        "openstack-placement is not installed; it is a development dependency of this project"
    )
    assert found.submodule_search_locations, f"{found.origin} is no package"
    return Path(found.submodule_search_locations[0]) / "tests" / "functional"
