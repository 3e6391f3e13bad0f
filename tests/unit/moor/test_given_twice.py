"""A name that a command is given twice is an error: neither of the two values may be dropped."""

import pytest
from click.testing import CliRunner

from moor.commands import app

PORT = "11111111-1111-1111-1111-111111111111"
LOAD = ("load", "--boots", "1", "--hosts", "2")
NOVA = ("nova", "import", "--api-db", "mysql://u:secret@127.0.0.1:1/api")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            (*LOAD, "--scheduler", "host_subset_size=2", "--scheduler", "host_subset_size=3"),
            "--scheduler gives host_subset_size",
        ),
        ((*LOAD, "--workers", "scheduler=1", "--workers", "scheduler=2"), "--workers gives scheduler"),
        (
            ("provider", "set", "inventory", "h", "VCPU=1", "VCPU=2"),
            "gives VCPU twice, as 'VCPU=1' and as 'VCPU=2'",
        ),
        (
            ("provider", "set", "inventory", "h", "VCPU=1,reserved=0,reserved=1"),
            "gives reserved twice, as 0 and as 1",
        ),
        (("candidates", "VCPU=1", "VCPU=2"), "the request gives VCPU twice, as 1 and as 2"),
        (("candidates", "--group", "a VCPU=1 VCPU=2"), "the group 'a' gives VCPU"),
        (("candidates", "VCPU=1", "tree:a", "tree:b"), "the request gives in_tree twice, as 'a' and as 'b'"),
        (
            ("candidates", "--group", "a VCPU=1", "--group", "a VCPU=2"),
            "--group gives a twice, as 'a VCPU=1' and as",
        ),
        (
            ("boot", "--resources", "VGPU=1", "--extra-spec", "resources:VGPU=2"),
            "gives resources:VGPU twice, as '1' and as '2'",
        ),
        (
            ("flavor", "create", "f", "--trait", "CUSTOM_A", "--extra-spec", "trait:CUSTOM_A=forbidden"),
            "gives trait:CUSTOM_A twice, as 'required' and as 'forbidden'",
        ),
        (
            ("boot", "--vcpus", "1", "--image-property", "a=1", "--image-property", "a=2"),
            "--image-property gives a",
        ),
        (("boot", "--vcpus", "1", "--volume", f"{PORT} VCPU=1 VCPU=2"), "--volume gives VCPU"),
        (("quota", "set", "shop", "instances=1", "instances=2"), "gives instances twice, as '1' and as '2'"),
        (("boot", "--vcpus", "1", "--port", PORT, "--port", f"{PORT} VCPU=2"), f"--port gives {PORT} twice"),
        (("boot", "--vcpus", "1", "--port", f"{PORT} VCPU=1 VCPU=2"), "--port gives VCPU"),
        (
            ("boot", "--vcpus", "1", "--port", f"{PORT} network=a network=b"),
            "--port gives network twice, as 'a' and as 'b'",
        ),
        (
            ("boot", "--vcpus", "1", "--meta", "password=secret-1", "--meta", "password=secret-2"),
            "--meta gives password twice, as *** and as ***",
        ),
        (("boot", "--vcpus", "1", "--extra-spec", "a=1", "--extra-spec", "a=1"), "--extra-spec gives a"),
        (
            ("device-profile", "create", "g", "--group", "resources:VGPU=1,resources:VGPU=2"),
            "--group 'resources:VGPU=1,resources:VGPU=2' gives VGPU twice, as 1 and as 2",
        ),
        (
            ("device-profile", "create", "g", "--group", "trait:CUSTOM_A=required,trait:CUSTOM_A=forbidden"),
            "gives CUSTOM_A twice, as 'required' and as 'forbidden'",
        ),
        (
            (*NOVA, "--cell-db", "c=mysql://u:secret@h/1", "--cell-db", "c=mysql://u:secret@h/2"),
            "--cell-db names the cell c twice",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_name_given_twice_is_an_error_that_shows_both_values(
    words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    ran = CliRunner().invoke(app, [*words])

    assert ran.exit_code == 2, ran.output
    assert told in ran.output
    assert "twice" in ran.output
    assert "secret" not in ran.output
