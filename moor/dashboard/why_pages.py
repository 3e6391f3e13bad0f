"""The page that says what would fit, and why not the rest: for a request that is not built."""

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response

from bus.messages.build import BuildInstance
from bus.messages.planning import AskPlan, PlanFound
from engine.flavors import Flavor
from moor.dashboard.asking_pages import NUMBER_MAX, AskingPages, is_number
from moor.dashboard.rendering import PageRefused, Reader


class Field(Struct, frozen=True):
    """A field of the form. `hint` is an example."""

    name: str
    label: str
    hint: str = ""
    is_number: bool = False


SIZES = (
    Field("vcpus", "VCPUs", is_number=True),
    Field("ram_mb", "memory (MB)", is_number=True),
    Field("root_gb", "disk (GB)", is_number=True),
)
TRAITS = Field("traits", "required traits", "HW_CPU_X86_AVX2")
SPECS = Field("specs", "extra specs", "resources:VGPU=1")
FLAVOR = Field("flavor", "stored flavor", "m1.small")
ZONE = Field("zone", "availability zone")
HOSTS = Field("hosts", "only on these hosts")
PROJECT = Field("project", "for the project")
FIELDS = (FLAVOR, *SIZES, TRAITS, SPECS, ZONE, HOSTS)


class WhyPages(AskingPages):
    async def why(self, request: Request, reader: Reader) -> Response:
        fields = (*FIELDS, PROJECT) if reader.is_admin else FIELDS
        given = {each.name: request.query_params.get(each.name, "").strip() for each in fields}
        plan, refused = None, ""
        try:
            if any(given.values()):
                build = _request_of(given, reader)
                plan = await self._ask(AskPlan(request=build, project=build.project), PlanFound)
        except PageRefused as problem:
            refused = str(problem)
        page = self._page(request, reader, "why.html", fields=fields, given=given, plan=plan, refused=refused)
        page.status_code = HTTPStatus.BAD_REQUEST if refused else HTTPStatus.OK
        return page


def _request_of(given: Mapping[str, str], reader: Reader) -> BuildInstance:
    sizes = {each.name: _size(each, given[each.name]) for each in SIZES}
    specs = {f"trait:{trait}": "required" for trait in _words(given["traits"])}
    for text in _words(given["specs"]):
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise PageRefused(f"{SPECS.label} is {text!r}: each must be KEY=VALUE.")
        if key in specs:
            raise PageRefused(f"{SPECS.label} gives {key} twice, as {specs[key]!r} and as {value!r}.")
        specs[key] = value
    flavor = given["flavor"]
    if flavor and (specs or any(sizes.values())):
        raise PageRefused(
            f"{FLAVOR.label} is {flavor!r}: it has sizes and extra specs of its own, so give no others."
        )
    return BuildInstance(
        flavor=None if flavor else structs.replace(Flavor(extra_specs=specs), **sizes),
        flavor_names=(flavor,) if flavor else (),
        availability_zone=given["zone"],
        hosts=tuple(_words(given["hosts"])),
        project=reader.project or given.get("project", ""),
    )


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _size(field: Field, text: str) -> int:
    if not text:
        return 0
    if not is_number(text):
        raise PageRefused(f"{field.label} is {text!r}: it must be a whole number, at most {NUMBER_MAX}.")
    return int(text)
