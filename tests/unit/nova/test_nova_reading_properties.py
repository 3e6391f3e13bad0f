"""Whatever bytes or JSON values come, the readers of Nova's messages raise nothing but their own error."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nova_bridge.envelope import RefusedError, read_envelope, redacted
from tests.properties.bounds import THOROUGH
from tests.unit.nova.recorded import CELL, INSTANCE, NAMES, an_object, enveloped, message_in, port
from tests.unit.nova.test_request_spec import READER, a_destination, a_group, asked

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**63, 2**70, str(INSTANCE), "rhost0001", "", "1.0", "a,b", "*"])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
KEYS = st.text(max_size=8) | st.sampled_from(
    ["nova_object.name", "nova_object.data", "objects", "resources:VCPU", "trait:X", "hw:numa_nodes", "group"]
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)

# A request that uses every part of a spec.
FULL = asked(
    {
        "force_hosts": ["rhost0001"],
        "requested_destination": a_destination(
            host="rhost0001",
            cell=an_object("CellMapping", "1.1", uuid=str(CELL)),
            aggregates=[str(INSTANCE)],
            forbidden_aggregates=[str(INSTANCE)],
        ),
        "retry": an_object(
            "SchedulerRetries",
            num_attempts=1,
            hosts=an_object(
                "ComputeNodeList",
                objects=[an_object("ComputeNode", host="rhost0002", hypervisor_hostname=None)],
            ),
        ),
        "instance_group": a_group(),
        "scheduler_hints": {"group": [str(INSTANCE)], "different_host": [str(INSTANCE)]},
        "requested_resources": [port(), port("port-2")],
        "request_level_params": an_object("RequestLevelParams", "1.1", same_subtree=[["port-1", "port-2"]]),
    },
    {"extra_specs": {"resources:VGPU": "1", "trait:HW_CPU_X86_AVX2": "required", "quota:x": "1"}},
    {"traits_required": ["HW_CPU_X86_SGX"], "hw_architecture": "x86_64", "hw_firmware_stateless": True},
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*place, key))


def _changed(value: Any, place: tuple[Any, ...], new: object) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return copy


PLACES = tuple(_places(FULL))
MESSAGE = message_in(
    enveloped({"method": "m", "version": "4.5", "args": {}, "_msg_id": "1", "_reply_q": "reply_1"})
)


def _answers(read: Callable[[], object]) -> object:
    """The value that the reader returns; None if it refuses, in few words."""
    try:
        return read()
    except RefusedError as error:
        refused = error
    assert refused.reason
    assert len(str(refused)) < 2000
    return None


@THOROUGH
@given(st.sampled_from(PLACES), VALUES)
def test_any_value_at_any_place_of_a_request_is_read_or_refused(
    place: tuple[Any, ...], value: object
) -> None:
    _answers(lambda: READER.read(_changed(FULL, place, value), NAMES))


@THOROUGH
@given(st.sampled_from([*MESSAGE, "namespace", "_unique_id", "_timeout", "_context_user_id"]), VALUES)
def test_any_value_in_a_message_is_read_or_refused(key: str, value: object) -> None:
    request = _answers(lambda: read_envelope(enveloped(MESSAGE | {key: value})))
    if request is not None:
        assert request == read_envelope(enveloped(MESSAGE | {key: value}))


@THOROUGH
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_can_be_redacted(body: bytes) -> None:
    _answers(lambda: read_envelope(body))
    json.loads(redacted(body))


@THOROUGH
@given(VALUES)
def test_no_secret_of_a_message_stays(value: object) -> None:
    message = {
        "args": {"a": [value], "auth_token": "HUSH"},
        "_context_auth_token": ["HUSH"],
        "db_password": "HUSH",
    }

    assert b"HUSH" not in redacted(enveloped(message))
