"""Ports and volumes on the command line become the requests for them."""

import pytest
import typer

from engine.flavors import PortRequest, VolumeRequest
from moor.instances.requests import AttachedOptions


def test_a_port_alone_is_attached_and_one_with_words_is_a_request_for_resources() -> None:
    words = "p2 NET_BW_EGR_KILOBIT_PER_SEC=100 network=public type=normal HW_NIC_SRIOV no:CUSTOM_SLOW"
    fields = AttachedOptions(
        port=["p1", words], volume=["v1 DISK_GB=20 STORAGE_DISK_SSD", "v2 DISK_GB=1"]
    ).fields
    assert fields == {
        "ports": ("p1",),
        "port_requests": (
            PortRequest(
                id="p2",
                resources={"NET_BW_EGR_KILOBIT_PER_SEC": 100},
                physical_network="public",
                vnic_type="normal",
                required=("HW_NIC_SRIOV",),
                forbidden=("CUSTOM_SLOW",),
            ),
        ),
        "volume_requests": (
            VolumeRequest(id="v1", resources={"DISK_GB": 20}, required=("STORAGE_DISK_SSD",)),
            VolumeRequest(id="v2", resources={"DISK_GB": 1}),
        ),
    }
    assert AttachedOptions().fields == {"ports": (), "port_requests": (), "volume_requests": ()}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (AttachedOptions(port=[" "]), "--port is ' ', and names no id"),
        (
            AttachedOptions(port=["p1 VCPU=0"]),
            "'VCPU=0': must be CLASS=N, with a whole number above 0, or network=NAME",
        ),
        (AttachedOptions(port=["p1 VCPU=many"]), "'VCPU=many'"),
        (AttachedOptions(port=["p1 colour=red"]), "'colour=red'"),
        (
            AttachedOptions(volume=["v1 network=public"]),
            "--volume has the word 'network=public': must be CLASS=N",
        ),
        (AttachedOptions(volume=["v1 DISK_GB=-1"]), "'DISK_GB=-1'"),
    ],
)
def test_a_word_that_says_nothing_is_named(options: AttachedOptions, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        _ = options.fields


def test_a_port_says_how_near_its_device_is_to_the_cells_of_the_guest() -> None:
    (port,) = AttachedOptions(port=["p SRIOV_NET_VF=1 type=direct numa=required"]).fields["port_requests"]

    assert (port.vnic_type, port.numa_affinity_policy) == ("direct", "required")
    with pytest.raises(typer.BadParameter, match="'numa=close': must be numa=legacy, numa=required"):
        _ = AttachedOptions(port=["p SRIOV_NET_VF=1 numa=close"]).fields
