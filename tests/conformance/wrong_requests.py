"""Requests to placement with several errors at once, drawn from a seed: each endpoint, each kind of error.

The answer to such a request shows in which order a server checks. Each endpoint is a row of a table: what stands in braces in its
path, and the functions in its body, are drawn.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.conformance.upstream import Asked

HOST = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0001"
NIC = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0002"
OTHER = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0006"
UNKNOWN = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0003"
WEB = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0004"
NEW = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0007"
RACK = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0005"

VERSIONS: Final = (
    *(
        "1.0",
        "1.1",
        "1.4",
        "1.6",
        "1.7",
        "1.8",
        "1.10",
        "1.12",
        "1.13",
        "1.14",
        "1.17",
        "1.19",
        "1.20",
        "1.23",
    ),
    *("1.26", "1.28", "1.30", "1.34", "1.36", "1.37", "1.38", "1.39", "1.39", "1.39", "1.39", "latest"),
)
# What a word may be, first if it is right and then if not.
WORDS: Final[Mapping[str, tuple[Sequence[Any], Sequence[Any]]]] = {
    "provider": ((HOST, HOST, NIC, OTHER), (UNKNOWN, "none")),
    "known": ((HOST, HOST, NIC, OTHER), (UNKNOWN,)),
    "consumer": ((WEB, NEW), ("none",)),
    "class": (("VCPU", "VCPU", "DISK_GB", "CUSTOM_RARE"), ("MEMORY_MB", "CUSTOM_NONE", "NONE")),
    "trait": (("CUSTOM_FAST", "HW_CPU_X86_VMX"), ("CUSTOM_NONE", "NONE", "custom_x", "CUSTOM_" + "X" * 250)),
    "about": (("", "/inventories", "/aggregates", "/traits", "/usages", "/allocations", "/nothing"), ("/",)),
    "emptied": (("", "/inventories", "/traits", "/inventories/{class}"), ("/usages",)),
    "odd query": (("", "", ""), ("?name=x", "?limit=x")),
    "total": ((8, 8, 9), (1, 0, -1, "8", 2**31, 8.5)),
    # Placement accepts ratios that have no use: below zero, or of any size.
    "ratio": ((1.0, 16.0), (0.1, "1")),
    # Beyond 2**31 our schema refuses an amount, and Placement's database does.
    "amount": ((1, 1, 2), (7, 9, 0, -1, "1")),
}
ABSENT: Final = object()
Part = Callable[["WrongRequests"], Any]


class WrongRequests:
    """Draws from one seed. `generations` are the current ones of providers and consumers when the request is made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generations: Mapping[str, int] = {}
        self.care = 0.0
        # The provider or the consumer that was drawn last.
        self.whose = ""

    def request(self) -> Asked:
        draw = self.random
        # Some requests have hardly any error, others many.
        self.care = draw.choice((0.02, 0.1, 0.2, 0.5))
        methods, target, body = draw.choice(_ENDPOINTS)
        method = draw.choice(methods.split())
        if self.rarely(self.care / 10):
            method = draw.choice(("GET", "PUT", "POST", "DELETE", "PATCH"))
        path, drawn = self.drawn(target), self.drawn(body)
        text = None if drawn is None else json.dumps(drawn)
        if text is not None and self.rarely(self.care / 4):
            text = draw.choice(("", "{", "[]", "null", '"x"', "{}", '{"a": NaN}', text[:-1]))
        return Asked(method, path, tuple(self._headers(text)), text)

    def _headers(self, body: str | None) -> Sequence[tuple[str, str]]:
        version = self.pick(VERSIONS, "1.40", "2.0", "one", "1", "0.9", care=1 / 6)
        headers = [("openstack-api-version", f"placement {version}")]
        token = self.pick(("admin",), "ann", None, care=1 / 10)
        media = self.pick(
            ("application/json",),
            *(None, "text/plain", "application/xml", "application/json; charset=utf-8"),
            care=1 / 4,
        )
        accepts = (
            *("bogus", "text/plain", "text/html", "application/xml", "*/*", "application/*", ""),
            *("application/json;q=0", "text/plain, application/json", "bogus, text/html"),
        )
        accept = self.random.choice(accepts) if self.rarely(0.2) else None
        named = {"x-auth-token": token, "content-type": body and media, "accept": accept}
        return [*headers, *((name, value) for name, value in named.items() if value is not None)]

    def rarely(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, right: Sequence[Any], *wrong: Any, care: float = 1.0) -> Any:
        return self.random.choice(wrong if self.rarely(self.care * care) else right)

    def word(self, name: str) -> Any:
        right, wrong = WORDS[name]
        drawn = self.drawn(self.pick(right, *wrong))
        if name in ("provider", "known", "consumer"):
            self.whose = drawn
        return drawn

    def drawn(self, value: Any) -> Any:
        """Sometimes an object lacks one of its keys, or has one more."""
        match value:
            case str():
                return re.sub(r"{(.+?)}", lambda found: str(self.word(found[1])), value)
            case dict():
                whole = {key: each for key, part in value.items() if (each := self.drawn(part)) is not ABSENT}
                if whole and self.rarely(self.care / 8):
                    del whole[self.random.choice(sorted(whole))]
                return whole | ({"colour": "red"} if self.rarely(self.care / 20) else {})
        return value(self) if callable(value) else value


def word(name: str) -> Part:
    return lambda wrongs: wrongs.word(name)


def one(*of: object) -> Part:
    return lambda wrongs: wrongs.drawn(wrongs.random.choice(of))


def pick(right: Sequence[object], *wrong: object) -> Part:
    return lambda wrongs: wrongs.pick(right, *wrong)


def sometimes(share: float, part: object) -> Part:
    return lambda wrongs: wrongs.drawn(part) if wrongs.rarely(share) else ABSENT


def usually(part: object, care: float) -> Part:
    return lambda wrongs: ABSENT if wrongs.rarely(wrongs.care * care) else wrongs.drawn(part)


def several(key: str, value: object, *counts: int) -> Part:
    return lambda wrongs: {
        wrongs.word(key): wrongs.drawn(value) for _ in range(wrongs.random.choice(counts or (0, 1, 1, 2)))
    }


def some(part: object) -> Part:
    return lambda wrongs: [wrongs.drawn(part) for _ in range(wrongs.random.choice((0, 1, 1, 2)))]


def query(path: str, *keys: str) -> Part:
    def drawn(wrongs: WrongRequests) -> str:
        asked = wrongs.random.sample(keys, wrongs.random.choice((0, 1, 1, 2, 2, 3)))
        return path + ("?" + "&".join(asked) if asked else "")

    return drawn


def generation(wrongs: WrongRequests) -> object:
    right = wrongs.generations.get(wrongs.whose, 0)
    return wrongs.pick((right,), right + 1, 0, str(right))


def consumer_generation(wrongs: WrongRequests) -> object:
    right = wrongs.generations.get(wrongs.whose)
    return wrongs.pick((right,), None, (right or 0) + 1, 0, "1")


_INVENTORY: Final = {
    "total": word("total"),
    "reserved": sometimes(0.2, pick((0, 1, 8), 9, -1)),
    "min_unit": sometimes(0.2, pick((1,), 0, 9)),
    "max_unit": sometimes(0.2, pick((8,), 0, 1)),
    "step_size": sometimes(0.2, pick((1,), 0, 3)),
    "allocation_ratio": sometimes(0.2, word("ratio")),
}
_GENERATION: Final = {"resource_provider_generation": generation}
_INVENTORIES: Final = {**_GENERATION, "inventories": several("class", _INVENTORY)}
_RESOURCES: Final = {"resources": several("class", word("amount"), 1, 1, 1, 2)}
_OWNED: Final = {
    # These first: the allocations name other ids.
    "consumer_generation": usually(consumer_generation, 1 / 2),
    "project_id": usually(pick(("shop",), "", "x" * 256), 1 / 4),
    "user_id": usually("ann", 1 / 4),
    "consumer_type": usually(pick(("INSTANCE",), "instance", "", "unknown"), 1 / 2),
    "allocations": several("known", _RESOURCES, 0, *[1] * 10, 2, 2),
}
_OLD_ALLOCATIONS: Final = some({"resource_provider": {"uuid": "{known}"}, **_RESOURCES})
_PROVIDER: Final = "/resource_providers/{provider}"
_INVENTORIES_OF: Final = f"{_PROVIDER}/inventories"
_NAME: Final = {
    "name": one(*("CUSTOM_RARE", "CUSTOM_NEW", "CUSTOM_NONE", "VCPU", "custom_x", "", "CUSTOM_" + "X" * 250))
}
_PARENT: Final = sometimes(0.5, one(HOST, NIC, OTHER, UNKNOWN, NEW, None, "none"))
_ENDPOINTS: Final[Sequence[tuple[str, object, object]]] = (
    ("GET", f"{_PROVIDER}{{about}}{{odd query}}", None),
    ("GET", f"{_INVENTORIES_OF}/{{class}}", None),
    (
        "POST",
        "/resource_providers",
        {
            "name": one("fresh", "host", "host", "x" * 201, 5),
            "uuid": sometimes(0.7, one(HOST, NEW, UNKNOWN, "none")),
            "parent_provider_uuid": _PARENT,
        },
    ),
    ("PUT", _PROVIDER, {"name": one("host", "nic", "other", "fresh", 5), "parent_provider_uuid": _PARENT}),
    ("DELETE", f"{_PROVIDER}{{emptied}}", None),
    *[("PUT", _INVENTORIES_OF, _INVENTORIES)] * 2,
    *[("PUT", f"{_INVENTORIES_OF}/{{class}}", {**_INVENTORY, **_GENERATION})] * 2,
    (
        "POST",
        _INVENTORIES_OF,
        {
            **_INVENTORY,
            "resource_class": "{class}",
            "resource_provider_generation": sometimes(0.6, generation),
        },
    ),
    (
        "PUT",
        f"{_PROVIDER}/aggregates",
        one(
            *[{**_GENERATION, "aggregates": some(one(RACK, RACK, "none", RACK.upper()))}] * 2,
            some(one(RACK, RACK, "none", RACK.upper())),
        ),
    ),
    ("PUT", f"{_PROVIDER}/traits", {**_GENERATION, "traits": some("{trait}")}),
    ("GET PUT DELETE", "/traits/{trait}", None),
    (
        "GET",
        one(
            *("/traits", "/traits?name=startswith:CUSTOM", "/traits?name=in:CUSTOM_FAST", "/traits?name=x"),
            *("/traits?associated=true", "/traits?associated=x", "/traits?colour=red"),
        ),
        None,
    ),
    *[("POST", "/resource_classes", _NAME), ("PUT", "/resource_classes/{class}", one(None, _NAME))],
    ("GET DELETE", "/resource_classes/{class}", None),
    *[
        (
            "PUT",
            "/allocations/{consumer}",
            {**_OWNED, "mappings": sometimes(0.1, one({"": [HOST]}, {"": []}, {"_A": ["none"]}))},
        )
    ]
    * 2,
    ("PUT", "/allocations/{consumer}", {**_OWNED, "allocations": _OLD_ALLOCATIONS}),
    ("POST", "/allocations", several("consumer", _OWNED)),
    ("GET DELETE", "/allocations/{consumer}", None),
    (
        "GET",
        query(
            "/usages",
            *("project_id=shop", "project_id=", "user_id=ann", "consumer_type=INSTANCE", "consumer_type=x"),
            *("project_id=a", "project_id=shop", "colour=red", "consumer_type=all", "project_id=shop"),
        ),
        None,
    ),
    (
        "GET",
        query(
            "/resource_providers",
            *(
                "name=host",
                f"uuid={HOST}",
                "uuid=none",
                f"in_tree={HOST}",
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
                f"member_of={RACK}",
                "member_of=none",
                "required=!CUSTOM_FAST",
                "colour=red",
                f"member_of=!{RACK}",
            ),
        ),
        None,
    ),
    (
        "GET",
        query(
            "/allocation_candidates",
            *("resources=VCPU:1", "resources=VCPU:1,DISK_GB:1", "resources=VCPU", "resources=NONE:1"),
            *("resources1=VCPU:1", "resources=VCPU:0", "required=CUSTOM_FAST", "required=NONE"),
            *("required1=CUSTOM_FAST", "limit=1", "limit=x", "group_policy=none", "group_policy=x"),
            *(f"member_of={RACK}", "member_of=none", f"in_tree={HOST}", "in_tree=none", "resources_A=VCPU:1"),
            *("root_required=CUSTOM_FAST", "root_required=NONE", "same_subtree=_A", "colour=red", "limit=0"),
            *("required=!CUSTOM_FAST", "required=CUSTOM_FAST,!CUSTOM_FAST", "resources="),
        ),
        None,
    ),
    *[
        (
            "POST",
            "/reshaper",
            {
                "inventories": several("known", _INVENTORIES),
                "allocations": several("consumer", _OWNED, 0, 1, 1),
            },
        )
    ]
    * 2,
    (
        "GET PUT POST DELETE",
        one("/", "/nothing", "/resource_providers/", "/traits/", "/usages/x"),
        None,
    ),
)
