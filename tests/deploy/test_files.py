"""The files of deploy/, held against what they are for: systemd, Kubernetes, the settings, this repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped] # it has no types
import pytest
import trustme
import yaml

from holdfast.config import all_fields, load
from tests.test_server import HOLDFAST
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
FOREIGN = {"Kustomization", "ServiceMonitor"}
"""Kinds that are not Kubernetes' own."""
EXPOSED_AT_MOST = 15  # tenths, as `systemd-analyze security` counts: below 2.0 is its best word


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def find(kind: str, name: str = "holdfast") -> dict[str, Any]:
    every = [one for path in MANIFESTS for one in documents(path)]
    (found,) = [one for one in every if one["kind"] == kind and one.get("metadata", {}).get("name", name) == name]
    return found


def check_settings(text: str, path: Path) -> None:
    """A configuration is taken when the files are there that it names."""
    etc = path / "etc"
    (etc / "secrets").mkdir(parents=True, exist_ok=True)
    certificate = trustme.CA().issue_cert("localhost")
    certificate.private_key_pem.write_to_path(etc / "privkey.pem")
    certificate.cert_chain_pems[0].write_to_path(etc / "fullchain.pem")
    for users in (etc / "users.json", etc / "secrets" / "users.json"):
        users.write_text('{"version": 1, "users": []}')
    subprocess.run([HOLDFAST, "token", "key", str(etc / "tokens.jwk")], check=True, capture_output=True)
    file = path / "holdfast.toml"
    file.write_text(text.replace("/etc/holdfast/", f"{etc}/"))
    done = subprocess.run(
        [HOLDFAST, "config", "check", file], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", sorted((DEPLOY / "config").glob("*.toml")), ids=lambda file: file.stem)
def test_example_configurations_are_good(file: Path, tmp_path: Path) -> None:
    check_settings(file.read_text(), tmp_path)


def test_every_file_says_first_what_was_not_tried() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix not in (".json", ".md")]
    assert len(files) > 15
    words = ("Not ", "not run", "not built", "not applied", "Checked", "check", "What the image is not")
    assert [path.name for path in files if not any(word in path.read_text().splitlines()[0] for word in words)] == []


# --- systemd --------------------------------------------------------------------------------------------------------


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a binary that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (apt-get install systemd)")
    text = (DEPLOY / "systemd" / "holdfast.service").read_text()
    file = tmp_path / "holdfast.service"
    file.write_text(text.replace("/opt/holdfast/bin/holdfast", str(HOLDFAST)))
    return file


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_systemd_takes_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_unit_with_a_mistake_is_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=mixd"))
    assert "kill mode" in analyze("verify", "--man=no", unit).stderr


def test_the_unit_is_exposed_little(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSED_AT_MOST}", unit)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge files (systemd 250 and newer can)")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_unit_waits_longer_than_the_server_takes_to_stop() -> None:
    seconds = re.search(r"^TimeoutStopSec=(\d+)s$", (DEPLOY / "systemd" / "holdfast.service").read_text(), re.MULTILINE)
    assert seconds is not None
    assert int(seconds[1]) * 1_000_000 >= load().node.shutdown_timeout + 5_000_000
    grace = find("StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace == int(seconds[1])


# --- Kubernetes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_takes_the_manifest(path: Path) -> None:
    newest = kubernetes_validate.latest_version()
    for one in documents(path):
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, newest, strict=True)


def test_a_manifest_with_a_mistake_is_found() -> None:
    wrong = find("StatefulSet")
    wrong["spec"]["replicas"] = "one"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_manifests_fit_together() -> None:
    pod = find("StatefulSet")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    labels = pod["metadata"]["labels"].items()
    for service in (find("Service"), find("Service", "holdfast-nodes")):
        assert service["spec"]["selector"].items() <= labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert find("StatefulSet")["spec"]["serviceName"] == "holdfast-nodes"
    assert find("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/livez"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in find("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert mounts == volumes | claims
    listed = set(documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"])
    assert listed | {"kustomization.yaml", "servicemonitor.yaml"} == {path.name for path in MANIFESTS}


def test_the_monitor_finds_one_service_and_its_port() -> None:
    monitor = find("ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [find("Service"), find("Service", "holdfast-nodes")]
    (found,) = [service for service in services if wanted <= service["metadata"]["labels"].items()]
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in found["spec"]["ports"]}
    assert monitor["endpoints"][0]["path"] == "/metrics"


def test_the_configuration_in_kubernetes_is_good(tmp_path: Path) -> None:
    check_settings(find("ConfigMap")["data"]["holdfast.toml"], tmp_path)


# --- containers -----------------------------------------------------------------------------------------------------


def test_the_image_copies_what_exists_and_sets_what_is_a_setting() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    allowed = set(re.findall(r"^!(.*)$", (DEPLOY / "container" / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert len(copied) > 5
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if not any(name == one or name.startswith(f"{one}/") for one in allowed)] == []
    known = {field.variable for field in all_fields()} | {"HOLDFAST_CONFIG", "HOLDFAST_COMMIT"}
    assert set(re.findall(r"HOLDFAST_[A-Z_]+", text)) <= known
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"server", "postgres", "otel"} <= set(project["optional-dependencies"])


def test_what_compose_mounts_is_there() -> None:
    compose = documents(DEPLOY / "container" / "compose.yaml")[0]
    mounts = [mount for service in compose["services"].values() for mount in service.get("volumes", [])]
    paths = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    made = [path for path in paths if not path.startswith("./secrets")]  # the user makes these
    assert len(made) >= 4
    assert [path for path in made if not (DEPLOY / "container" / path).exists()] == []
    named = {mount.split(":")[0] for mount in mounts if not mount.startswith(".")}
    assert named == set(compose["volumes"])
