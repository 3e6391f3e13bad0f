"""Requests to placement with several errors at once, drawn from a seed: each endpoint, each kind of error.

The answer to such a request shows in which order a server checks.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.conformance.requests_asked import Asked

HOST = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0001"
NIC = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0002"
OTHER = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0006"
UNKNOWN = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0003"
WEB = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0004"
NEW = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0007"
RACK = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0005"

VERSIONS: Final = (
    *("1.0", "1.1", "1.4", "1.6", "1.7", "1.8", "1.10", "1.12", "1.13", "1.14", "1.17", "1.19", "1.20"),
    *(
        "1.23",
        "1.26",
        "1.28",
        "1.30",
        "1.34",
        "1.36",
        "1.37",
        "1.38",
        "1.39",
        "1.39",
        "1.39",
        "1.39",
        "latest",
    ),
)
Body = dict[str, Any]


class WrongRequests:
    """Draws from one seed. `generations` are the providers' current ones when the request is made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generations: Mapping[str, int] = {}
        self.consumer_generations: Mapping[str, int] = {}
        self.care = 0.0

    def request(self) -> Asked:
        draw = self.random
        # Some requests have hardly any error, others many.
        self.care = draw.choice((0.02, 0.1, 0.2, 0.5))
        method, target, body = draw.choice(_ENDPOINTS)(self)
        if self.rarely(self.care / 10):
            method = draw.choice(("GET", "PUT", "POST", "DELETE", "PATCH"))
        text = None if body is None else json.dumps(body)
        if text is not None and self.rarely(self.care / 4):
            text = draw.choice(("", "{", "[]", "null", '"x"', "{}", '{"a": NaN}', text[:-1]))
        return Asked(method, target, self._headers(text), text)

    def _headers(self, body: str | None) -> tuple[tuple[str, str], ...]:
        draw = self.random
        headers = [("x-auth-token", "admin")]
        if self.rarely(self.care / 10):
            headers = draw.choice(([], [("x-auth-token", "ann")]))
        version = draw.choice(VERSIONS)
        if self.rarely(self.care / 6):
            version = draw.choice(("1.40", "2.0", "one", "1", "0.9"))
        headers.append(("openstack-api-version", f"placement {version}"))
        if body is not None and not self.rarely(self.care / 6):
            media = "application/json"
            if self.rarely(self.care / 6):
                media = draw.choice(("text/plain", "application/xml", "application/json; charset=utf-8"))
            headers.append(("content-type", media))
        if self.rarely(0.2):
            accept = draw.choice(
                (
                    *("bogus", "text/plain", "text/html", "application/xml", "*/*", "application/*"),
                    *("application/json;q=0", "text/plain, application/json", "bogus, text/html", ""),
                )
            )
            headers.append(("accept", accept))
        return tuple(headers)

    # Parts

    def rarely(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, right: Sequence[Any], *wrong: Any) -> Any:
        return self.random.choice(wrong if self.rarely(self.care) else right)

    def word(self, right: Sequence[str], *wrong: str) -> str:
        return str(self.pick(right, *wrong))

    def provider(self) -> str:
        return self.word((HOST, HOST, NIC, OTHER), UNKNOWN, "none")

    def known(self) -> str:
        return self.word((HOST, HOST, NIC, OTHER), UNKNOWN)

    def resource_class(self) -> str:
        return self.word(("VCPU", "VCPU", "DISK_GB", "CUSTOM_RARE"), "MEMORY_MB", "CUSTOM_NONE", "NONE")

    def generation(self, provider: str) -> object:
        right = self.generations.get(provider, 0)
        return self.pick((right,), right + 1, 0, str(right))

    def inventory(self) -> Body:
        body: Body = {"total": self.pick((8, 8, 9), 1, 0, -1, "8", 2**31, 8.5)}
        # Placement accepts ratios that have no use: below zero, or of any size.
        for key, right, wrong in (
            ("reserved", (0, 1, 8), (9, -1)),
            ("min_unit", (1,), (0, 9)),
            ("max_unit", (8,), (0, 1)),
            ("step_size", (1,), (0, 3)),
            ("allocation_ratio", (1.0, 16.0), (0.1, "1")),
        ):
            if self.rarely(0.2):
                body[key] = self.pick(right, *wrong)
        if self.rarely(self.care / 8):
            body["colour"] = "red"
        return body

    def resources(self) -> Body:
        # Beyond 2**31 our schema refuses an amount, and Placement's database does.
        amounts = {
            self.resource_class(): self.pick((1, 1, 2), 7, 9, 0, -1, "1") for _ in range(1 + self.rarely(0.3))
        }
        return {} if self.rarely(self.care / 8) else amounts

    def allocations(self) -> Body:
        return {self.known(): {"resources": self.resources()} for _ in range(1 + self.rarely(0.3))}

    def owned(self, body: Body, consumer: str) -> Body:
        if not self.rarely(self.care / 4):
            body["project_id"] = self.pick(("shop",), "", "x" * 256)
        if not self.rarely(self.care / 4):
            body["user_id"] = "ann"
        if not self.rarely(self.care / 2):
            right = self.consumer_generations.get(consumer)
            body["consumer_generation"] = self.pick((right,), None, (right or 0) + 1, 0, "1")
        if not self.rarely(self.care / 2):
            body["consumer_type"] = self.pick(("INSTANCE",), "instance", "", "unknown")
        return body

    def consumer(self) -> str:
        return self.word((WEB, NEW), "none")

    def trait(self) -> str:
        return self.word(
            ("CUSTOM_FAST", "HW_CPU_X86_VMX"), "CUSTOM_NONE", "NONE", "custom_x", "CUSTOM_" + "X" * 250
        )


Drawn = tuple[str, str, Body | None]


def _show(wrongs: WrongRequests) -> Drawn:
    what = wrongs.random.choice(
        ("", "/inventories", "/aggregates", "/traits", "/usages", "/allocations", "/nothing")
    )
    query = wrongs.random.choice(("", "", "", "?name=x", "?limit=x"))
    return "GET", f"/resource_providers/{wrongs.provider()}{what}{query}", None


def _create(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    body: Body = {"name": draw.choice(("fresh", "host", "host", "x" * 201, 5))}
    if wrongs.rarely(0.7):
        body["uuid"] = draw.choice((HOST, NEW, UNKNOWN, "none"))
    if wrongs.rarely(0.5):
        body["parent_provider_uuid"] = draw.choice((HOST, NIC, UNKNOWN, NEW, None, "none"))
    if wrongs.rarely(0.05):
        body["colour"] = "red"
    return "POST", "/resource_providers", body


def _rename(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    body: Body = {"name": draw.choice(("host", "nic", "other", "fresh", 5))}
    if wrongs.rarely(0.6):
        body["parent_provider_uuid"] = draw.choice((HOST, NIC, OTHER, UNKNOWN, None, "none"))
    return "PUT", f"/resource_providers/{wrongs.provider()}", body


def _delete(wrongs: WrongRequests) -> Drawn:
    what = wrongs.random.choice(("", "/inventories", "/traits", f"/inventories/{wrongs.resource_class()}"))
    return "DELETE", f"/resource_providers/{wrongs.provider()}{what}", None


def _set_inventories(wrongs: WrongRequests) -> Drawn:
    provider = wrongs.provider()
    body: Body = {
        "resource_provider_generation": wrongs.generation(provider),
        "inventories": {
            wrongs.resource_class(): wrongs.inventory() for _ in range(wrongs.random.choice((0, 1, 1, 2)))
        },
    }
    return "PUT", f"/resource_providers/{provider}/inventories", _missing(wrongs, body)


def _set_inventory(wrongs: WrongRequests) -> Drawn:
    provider = wrongs.provider()
    body = {**wrongs.inventory(), "resource_provider_generation": wrongs.generation(provider)}
    return (
        "PUT",
        f"/resource_providers/{provider}/inventories/{wrongs.resource_class()}",
        _missing(wrongs, body),
    )


def _add_inventory(wrongs: WrongRequests) -> Drawn:
    provider = wrongs.provider()
    body = {**wrongs.inventory(), "resource_class": wrongs.resource_class()}
    if wrongs.rarely(0.6):
        body["resource_provider_generation"] = wrongs.generation(provider)
    return "POST", f"/resource_providers/{provider}/inventories", _missing(wrongs, body)


def _show_inventory(wrongs: WrongRequests) -> Drawn:
    return "GET", f"/resource_providers/{wrongs.provider()}/inventories/{wrongs.resource_class()}", None


def _set_aggregates(wrongs: WrongRequests) -> Drawn:
    provider = wrongs.provider()
    named = [
        wrongs.random.choice((RACK, RACK, "none", RACK.upper()))
        for _ in range(wrongs.random.choice((0, 1, 1, 2)))
    ]
    if wrongs.rarely(0.3):
        return "PUT", f"/resource_providers/{provider}/aggregates", named  # type: ignore[return-value]
    body = {"aggregates": named, "resource_provider_generation": wrongs.generation(provider)}
    return "PUT", f"/resource_providers/{provider}/aggregates", _missing(wrongs, body)


def _set_traits(wrongs: WrongRequests) -> Drawn:
    provider = wrongs.provider()
    body = {
        "traits": [wrongs.trait() for _ in range(wrongs.random.choice((0, 1, 1, 2)))],
        "resource_provider_generation": wrongs.generation(provider),
    }
    return "PUT", f"/resource_providers/{provider}/traits", _missing(wrongs, body)


def _of_trait(wrongs: WrongRequests) -> Drawn:
    return wrongs.random.choice(("GET", "PUT", "DELETE")), f"/traits/{wrongs.trait()}", None


def _traits(wrongs: WrongRequests) -> Drawn:
    query = wrongs.random.choice(
        (
            "",
            "?name=startswith:CUSTOM",
            "?name=in:CUSTOM_FAST",
            "?name=x",
            "?associated=true",
            "?associated=x",
            "?colour=red",
        )
    )
    return "GET", f"/traits{query}", None


def _classes(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    name = draw.choice(
        ("CUSTOM_RARE", "CUSTOM_NEW", "CUSTOM_NONE", "VCPU", "custom_x", "", "CUSTOM_" + "X" * 250)
    )
    match draw.randrange(4):
        case 0:
            return "POST", "/resource_classes", _missing(wrongs, {"name": name})
        case 1:
            return "PUT", f"/resource_classes/{wrongs.resource_class()}", draw.choice((None, {"name": name}))
        case 2:
            return "DELETE", f"/resource_classes/{wrongs.resource_class()}", None
        case _:
            return "GET", f"/resource_classes/{wrongs.resource_class()}", None


def _set_allocations(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    allocations: object = wrongs.allocations()
    if wrongs.rarely(0.1):
        allocations = [
            {"resource_provider": {"uuid": named}, "resources": one["resources"]}
            for named, one in wrongs.allocations().items()
        ]
    if wrongs.rarely(0.08):
        allocations = {}
    consumer = wrongs.consumer()
    body = wrongs.owned({"allocations": allocations}, consumer)
    if wrongs.rarely(0.1):
        body["mappings"] = draw.choice(({"": [HOST]}, {"": []}, {"_A": ["none"]}))
    return "PUT", f"/allocations/{consumer}", _missing(wrongs, body)


def _several_allocations(wrongs: WrongRequests) -> Drawn:
    consumers = {
        consumer: _missing(
            wrongs,
            wrongs.owned({"allocations": {} if wrongs.rarely(0.1) else wrongs.allocations()}, consumer),
        )
        for consumer in [wrongs.consumer() for _ in range(wrongs.random.choice((0, 1, 1, 2)))]
    }
    return "POST", "/allocations", consumers


def _of_consumer(wrongs: WrongRequests) -> Drawn:
    return wrongs.random.choice(("GET", "DELETE")), f"/allocations/{wrongs.consumer()}", None


def _usages(wrongs: WrongRequests) -> Drawn:
    query = wrongs.random.choice(
        (
            *("", "?project_id=shop", "?project_id=", "?user_id=ann", "?project_id=shop&user_id=ann"),
            *(
                "?project_id=shop&consumer_type=INSTANCE",
                "?project_id=shop&consumer_type=x",
                "?project_id=a&project_id=shop",
            ),
            *("?project_id=shop&colour=red", "?project_id=shop&consumer_type=all"),
        )
    )
    return "GET", f"/usages{query}", None


def _providers(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    keys = draw.sample(
        (
            *(
                "name=host",
                "uuid=" + HOST,
                "uuid=none",
                "in_tree=" + HOST,
                "in_tree=none",
                "resources=VCPU:1",
            ),
            *(
                "resources=VCPU",
                "resources=NONE:1",
                "resources=VCPU:0",
                "required=CUSTOM_FAST",
                "required=NONE",
            ),
            *(
                "member_of=" + RACK,
                "member_of=none",
                "required=!CUSTOM_FAST",
                "colour=red",
                "member_of=!" + RACK,
            ),
        ),
        draw.choice((0, 1, 1, 2, 3)),
    )
    return "GET", "/resource_providers" + ("?" + "&".join(keys) if keys else ""), None


def _candidates(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    keys = draw.sample(
        (
            *(
                "resources=VCPU:1",
                "resources=VCPU:1,DISK_GB:1",
                "resources=VCPU",
                "resources=NONE:1",
                "resources1=VCPU:1",
            ),
            *(
                "resources=VCPU:0",
                "required=CUSTOM_FAST",
                "required=NONE",
                "required1=CUSTOM_FAST",
                "limit=1",
                "limit=x",
            ),
            *(
                "group_policy=none",
                "group_policy=x",
                "member_of=" + RACK,
                "member_of=none",
                "in_tree=" + HOST,
                "in_tree=none",
            ),
            *(
                "root_required=CUSTOM_FAST",
                "root_required=NONE",
                "same_subtree=_A",
                "colour=red",
                "resources_A=VCPU:1",
            ),
            *("required=!CUSTOM_FAST", "required=CUSTOM_FAST,!CUSTOM_FAST", "limit=0", "resources="),
        ),
        draw.choice((0, 1, 2, 2, 3, 4)),
    )
    return "GET", "/allocation_candidates" + ("?" + "&".join(keys) if keys else ""), None


def _reshape(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    inventories = {
        provider: _missing(
            wrongs,
            {
                "resource_provider_generation": wrongs.generation(provider),
                "inventories": {
                    wrongs.resource_class(): wrongs.inventory() for _ in range(draw.choice((0, 1, 1, 2)))
                },
            },
        )
        for provider in [wrongs.known() for _ in range(draw.choice((0, 1, 1, 2)))]
    }
    allocations = {
        consumer: _missing(wrongs, wrongs.owned({"allocations": wrongs.allocations()}, consumer))
        for consumer in [draw.choice((WEB, NEW)) for _ in range(draw.choice((0, 1, 1)))]
    }
    return "POST", "/reshaper", _missing(wrongs, {"inventories": inventories, "allocations": allocations})


def _elsewhere(wrongs: WrongRequests) -> Drawn:
    draw = wrongs.random
    return (
        draw.choice(("GET", "PUT", "POST", "DELETE")),
        draw.choice(("/", "/nothing", "/resource_providers/", "/traits/", "/usages/x")),
        None,
    )


def _missing(wrongs: WrongRequests, body: Body) -> Body:
    """The object as it is, or without one of its keys."""
    if not body or not wrongs.rarely(wrongs.care / 8):
        return body
    left_out = wrongs.random.choice(sorted(body))
    return {key: value for key, value in body.items() if key != left_out}


_ENDPOINTS: Final[tuple[Callable[[WrongRequests], Drawn], ...]] = (
    *(_show, _create, _rename, _delete, _set_inventories, _set_inventories, _set_inventory, _set_inventory),
    *(
        _add_inventory,
        _show_inventory,
        _set_aggregates,
        _set_traits,
        _of_trait,
        _traits,
        _classes,
        _providers,
    ),
    *(_set_allocations, _set_allocations, _several_allocations, _of_consumer, _usages, _candidates),
    *(_reshape, _reshape, _elsewhere),
)
