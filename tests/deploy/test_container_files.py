"""The files for containers: compose against the compose specification, manifests against the schemas of Kubernetes' API, and all of
them against what there is: commands, environment files, ports.
"""

import json
import re
import subprocess
import sys
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from moor.clouds.run_command import app as run_app
from tests.stories.moor.moor_process import moor_says

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted(
    each for each in (DEPLOY / "kubernetes").glob("*.yaml") if each.name != "kustomization.yaml"
)
# Versions that are in use: the oldest that is maintained, or was a while ago, and the newest that the package knows.
VERSIONS = ("1.29", "1.31", kubernetes_validate.latest_version())
WORKLOADS = ("Deployment", "StatefulSet", "Job")
NO_ROLE = {"simulated-ironic"}


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def workloads() -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each
        for file in MANIFESTS
        for each in documents(file)
        if each["kind"] in WORKLOADS
    }


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


# Kubernetes


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_as_the_api_has_them(version: str) -> None:
    for file in MANIFESTS:
        for document in documents(file):
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("spec", "replicas"), "two"), (("spec", "template", "spec", "containers", 0, "imagePull"), "Always")],
)
def test_a_wrong_manifest_is_found(path: tuple[Any, ...], value: object) -> None:
    document = workloads()["moor-scheduler"]
    part: Any = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


def test_every_workload_is_guarded_watched_and_bounded() -> None:
    for name, workload in workloads().items():
        pod, container = workload["spec"]["template"]["spec"], container_of(workload)
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
        assert "memory" in container["resources"]["limits"], name
        if workload["kind"] != "Job":
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}, name
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}, name
            assert (
                workload["spec"]["selector"]["matchLabels"]
                == workload["spec"]["template"]["metadata"]["labels"]
            )


def test_whatever_has_several_pods_keeps_some_in_a_disruption() -> None:
    budgets = {
        each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        for file in MANIFESTS
        for each in documents(file)
        if each["kind"] == "PodDisruptionBudget"
    }

    assert budgets == {name for name, each in workloads().items() if each["spec"].get("replicas", 1) > 1}


def test_services_and_policies_name_pods_that_there_are() -> None:
    names, found = set(workloads()), []
    for file in MANIFESTS:
        for each in documents(file):
            if each["kind"] == "Service":
                found.append(each["spec"]["selector"]["app.kubernetes.io/name"])
            elif each["kind"] == "NetworkPolicy":
                found += re.findall(r"moor-[a-z-]+", json.dumps(each["spec"]))

    assert found
    assert set(found) <= names


def test_the_kustomization_names_every_file() -> None:
    text = (DEPLOY / "kubernetes" / "kustomization.yaml").read_text()

    assert [file.name for file in MANIFESTS if file.name not in text] == []
    for each in yaml.safe_load(text)["resources"]:
        assert (DEPLOY / "kubernetes" / each).is_file()


# Compose


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def compose_schema() -> dict[str, Any]:
    return dict(
        json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
    )


def test_compose_is_as_its_specification_has_it() -> None:
    # The merge key is YAML's, and the loader resolves it.
    jsonschema.validate(compose(), compose_schema())


def test_a_wrong_compose_file_is_found() -> None:
    wrong = compose()
    wrong["services"]["scheduler"]["restarts"] = "always"

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, compose_schema())


def test_compose_has_every_worker_with_its_own_user_and_no_password() -> None:
    services = compose()["services"]
    started = {
        service["command"][1] for service in services.values() if service.get("command", [""])[0] == "run"
    }
    used = [name for name, each in services.items() for _ in each.get("env_file", ())]

    workers = {*run_app.commands}
    # Bare metal needs an Ironic, and a scheduler of a Nova needs a Nova.
    assert started == workers - NO_ROLE - {"ironic", "nova-scheduler"}
    assert len(used) == len(started) + 2, "each cell has a conductor and a compute"
    for name, service in services.items():
        assert "healthcheck" in service, name
        for variable, value in service.get("environment", {}).items():
            if "PASS" in variable or "_URL" in variable:
                assert "${MOORAGE_" in value, f"{name}: {variable}"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


# Both


async def test_every_command_in_a_container_exists() -> None:
    commands = {tuple(container_of(each)["args"]) for each in workloads().values()}
    commands |= {tuple(each["command"]) for each in compose()["services"].values() if "command" in each}
    for words in sorted(commands):
        await moor_says(0, "", *words, "--help")


def test_every_environment_file_that_is_named_is_one_that_the_commands_write() -> None:
    written = re.compile(
        r"moor-(placement|placement-api|scheduler|keeper|ironic|operator|owner|app-dashboard|(conductor|compute)-\w+)"
    )
    named = [
        Path(each["path"]).stem
        for service in compose()["services"].values()
        for each in service.get("env_file", ())
    ]
    named += [container_of(each)["envFrom"][0]["secretRef"]["name"] for each in workloads().values()]

    assert [name for name in named if not written.fullmatch(name)] == []


def test_the_container_file_runs_as_nobody_and_copies_every_room() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and "--" not in line}
    rooms = {each.parent.name for each in DEPLOY.parent.glob("*/py.typed")}

    assert users == ["10001:10001"]
    assert rooms <= copied
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert not re.search(r"PASSWORD|SECRET|TOKEN", "\n".join(lines))
    for line in lines:
        if line.startswith("COPY --chmod"):
            assert all((DEPLOY.parent / each).is_file() for each in line.split()[2:-1])


def test_the_scripts_of_the_image_are_read_by_their_programs() -> None:
    scripts = DEPLOY / "container"
    subprocess.run(["sh", "-n", str(scripts / "setup")], check=True)
    for name in ("is-ready", "rabbitmqctl-over-http"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile((scripts / name).read_text(), name, "exec")


def test_a_worker_that_does_not_answer_is_not_ready() -> None:
    ran = subprocess.run(
        [sys.executable, str(DEPLOY / "container" / "is-ready")],
        env={"MOOR_HEALTH_LISTEN": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert "no answer" in ran.stderr


def test_what_is_copied_into_the_image_is_not_kept_from_it() -> None:
    kept = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    copied = {
        word.partition("/")[0]
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
        if not word.startswith("--")
    }

    assert {f"!{each}" for each in copied} <= set(kept)
    assert "*" in kept[:5]
    # BuildKit finds the file by its name. Podman is told it, as the container file says.
    (told,) = [line for line in lines if "podman build" in line]
    assert (
        DEPLOY.parent / told.partition("--ignorefile ")[2].split()[0] == DEPLOY / "Containerfile.dockerignore"
    )
