"""Upstream's suite, as its wheel brings it: YAML files of steps, and which kind of server each wants."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import yaml
from msgspec import Struct

# What upstream's fixtures turn their server into; the others want it as it comes.
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
        # gabbi's files say their own tags; only lists and names are looked at here.
        written = yaml.load(path.read_text(), Loader=yaml.CBaseLoader)  # noqa: S506  (upstream's, and texts alone)
        fixtures = written.get("fixtures", ())
        profile = next((_PROFILES[name] for name in fixtures if name in _PROFILES), "default")
        yield SuiteFile(path, profile, len(written["tests"]))


def functional_tests() -> Path:
    """Where the wheel keeps them. The package is found, not imported: nothing of it runs here."""
    found = find_spec("placement")
    assert found is not None, (
        "openstack-placement is not installed; it is a development dependency of this project"
    )
    assert found.submodule_search_locations, f"{found.origin} is no package"
    return Path(found.submodule_search_locations[0]) / "tests" / "functional"
