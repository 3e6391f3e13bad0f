"""Where the name of a flavor is looked up: in a file that is named, or else among the stored ones and then in the file of `moor up`."""

from pathlib import Path

import pytest
import typer

from bus.configuration.addresses import Addresses
from bus.messages.build import Flavor
from moor.instances import flavors
from moor.instances.flavors import alternatives_of, flavor_named, write_flavors
from moor.settings import Settings

STORED = Flavor(name="small", vcpus=7)


@pytest.fixture(autouse=True)
def _some_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"small": STORED, "only-stored": Flavor(name="only-stored", vcpus=1)}
    monkeypatch.setattr(flavors, "_stored", lambda name, _settings, _project: stored.get(name))


@pytest.fixture
def of_up(tmp_path: Path) -> Settings:
    settings = Settings(addresses=Addresses(), data=tmp_path / "data")
    settings.flavors_file.parent.mkdir()
    write_flavors(settings.flavors_file, Flavor(name="small", vcpus=3), Flavor(name="metal", root_gb=1))
    return settings


def test_a_file_that_is_named_is_the_only_place(of_up: Settings, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    write_flavors(file, Flavor(name="small", vcpus=2))

    assert flavor_named("small", file, of_up).vcpus == 2
    with pytest.raises(typer.BadParameter, match=r"which the file does not have; it has small$"):
        flavor_named("only-stored", file, of_up)


def test_a_stored_flavor_wins_over_the_file_of_moor_up(of_up: Settings) -> None:
    assert flavor_named("small", None, of_up) == STORED
    assert flavor_named("metal", None, of_up).root_gb == 1


def test_an_error_says_where_the_name_was_looked_up(of_up: Settings, tmp_path: Path) -> None:
    with pytest.raises(
        typer.BadParameter, match=r"--else is 'none', .* it has small, metal; nor is it stored"
    ):
        flavor_named("none", None, of_up, "--else")
    elsewhere = Settings(addresses=Addresses(), data=tmp_path / "nothing")
    with pytest.raises(
        typer.BadParameter, match=r"no flavor of this name is stored .* no file of flavors is named"
    ):
        flavor_named("none", None, elsewhere)
    assert (
        alternatives_of("only-stored", None, of_up) == alternatives_of("only-stored", None, elsewhere) == ()
    )
