"""Options for what is attached to an instance: network ports and volumes, with the resources that they need of its host."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, get_args

import typer
from msgspec import Struct

from bus.messages.build import NumaAffinity, PortRequest, VolumeRequest
from moor.options import put_once

_CLASS = re.compile(r"[A-Z0-9_]+")
# By the word on the command line: the field of a port request.
PORT_WORDS = {"network": "physical_network", "type": "vnic_type", "numa": "numa_affinity_policy"}
NUMA_WORDS = tuple(each for each in get_args(NumaAffinity) if each)


class AttachedOptions(Struct, frozen=True):
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'ID [WORD...]'",
            help="A network port; may be repeated. With an id alone it is attached to a bare-metal node. With words, its host must "
            "give it: CLASS=N (amount); TRAIT (required); no:TRAIT (forbidden); network=NAME; type=NAME (its kind, such as "
            "normal or direct); numa=POLICY (how near its device is to the guest's NUMA cells: legacy, required, preferred).",
        ),
    ] = None
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'ID CLASS=N [WORD...]'",
            help="A volume that its host, or a pool of the host, must give: an id, amounts, and traits as of a port; may be repeated.",
        ),
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that these options set in a build request."""
        ports, volumes = _words("--port", self.port or ()), _words("--volume", self.volume or ())
        return {
            "ports": tuple(id_ for id_, *words in ports if not words),
            "port_requests": tuple(
                PortRequest(id=id_, **_needs("--port", words, PORT_WORDS)) for id_, *words in ports if words
            ),
            "volume_requests": tuple(
                VolumeRequest(id=id_, **_needs("--volume", words, {})) for id_, *words in volumes
            ),
        }


def _words(flag: str, texts: Sequence[str]) -> list[list[str]]:
    given: dict[str, str] = {}
    for text in texts:
        if not text.strip():
            raise typer.BadParameter(f"{flag} is {text!r}, and names no id")
        put_once(given, text.split()[0], text, flag)
    return [text.split() for text in given.values()]


def _needs(flag: str, words: Sequence[str], named: dict[str, str]) -> dict[str, Any]:
    """The fields that these words set in the request for a port or a volume."""
    needs: dict[str, Any] = {"resources": {}, "required": (), "forbidden": ()}
    pairs: dict[str, str] = {}
    for word in words:
        key, is_pair, value = word.partition("=")
        if key == "numa" and key in named and value not in NUMA_WORDS:
            raise typer.BadParameter(
                f"{flag} has the word {word!r}: must be numa={', numa='.join(NUMA_WORDS)}"
            )
        if is_pair and key in named:
            put_once(pairs, key, value, flag)
            needs[named[key]] = value
        elif is_pair and _CLASS.fullmatch(key) and value.isdecimal() and int(value):
            put_once(needs["resources"], key, int(value), flag)
        elif is_pair:
            known = "".join(f", or {each}=NAME" for each in named)
            raise typer.BadParameter(
                f"{flag} has the word {word!r}: must be CLASS=N, with a whole number above 0{known}"
            )
        elif word.startswith("no:"):
            needs["forbidden"] += (word.removeprefix("no:"),)
        else:
            needs["required"] += (word,)
    return needs
