from uuid import UUID

from nova_bridge.cloud import (
    ComputeService,
)

CELL = UUID(int=7)


def test_a_service_says_why_nothing_may_be_built_there() -> None:
    service = ComputeService(id=CELL, host="h", is_up=True)
    said = [
        service.unusable_because,
        ComputeService(id=CELL, host="h", is_up=False).unusable_because,
        ComputeService(id=CELL, host="h", is_up=True, is_forced_down=True).unusable_because,
        ComputeService(
            id=CELL, host="h", is_up=True, is_disabled=True, disabled_reason="new disk"
        ).unusable_because,
    ]

    assert said == [
        "",
        "its service is down",
        "its service is forced down",
        "its service is disabled: new disk",
    ]
