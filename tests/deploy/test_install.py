"""What a release consists of: an sdist, the wheel that is built from it, and the list of what they bring along."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import httpx

from holdfast import __version__
from tests.test_server import serving
from tests.waiting import PATIENCE_SECONDS
from tools import sbom

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789ab"


def run(*command: str | Path, **environ: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(target: str, source: Path, into: Path, **environ: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    done = subprocess.run(
        command, cwd=source, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (made,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def test_a_wheel_that_is_built_of_the_sdist_is_whole_and_works_where_it_is_installed(tmp_path: Path) -> None:
    """One test, since each step needs the one before."""
    sdist = build("sdist", ROOT, tmp_path / "sdist", HOLDFAST_COMMIT=COMMIT)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"Makefile", "requirements.lock", "tests/conftest.py", "deploy/systemd/holdfast.service"} <= names
    assert {"src/holdfast/COMMIT", "docs/README.md", "CHANGELOG.md", "tools/build_hook.py"} <= names

    wheel = build("wheel", tmp_path / f"holdfast-{__version__}", tmp_path / "wheel")
    check_contents(wheel)

    holdfast = install(wheel, tmp_path / "venv")
    program = "import holdfast; print(holdfast.__file__)"
    assert run(holdfast.with_name("python"), "-c", program).startswith(str(tmp_path / "venv"))
    assert run(holdfast, "--version") == f"holdfast {__version__} (commit {COMMIT})\n"
    with serving(tmp_path / "data", binary=str(holdfast)) as server:
        url = str(server.wait_for("HTTP API is listening")["url"])
        assert server.wait_for("holdfast is running")["commit"] == COMMIT
        run(holdfast, "send", "jobs", '"hello"', HOLDFAST_URL=url)
        assert "hello" in run(holdfast, "receive", "jobs", "--create", HOLDFAST_URL=url)
        with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
            loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', http.get("/").text)
            assert len(loaded) > 4
            assert {path: http.get(path).status_code for path in loaded} == dict.fromkeys(loaded, 200)


def check_contents(wheel: Path) -> None:
    """Every file of the packages and no other, and the licences of what is among them."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert "License-Expression: Apache-2.0 AND 0BSD AND MIT" in metadata
    licences = [Path(name).name for name in names if "/licenses/" in name]
    assert licences == ["LICENSE", "htmx.LICENSE.txt", "uplot.LICENSE.txt"]
    if (ROOT / ".git").exists():
        listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "src")
        packed = {name for name in names if ".dist-info/" not in name}
        assert packed == {line.removeprefix("src/") for line in listed.splitlines()} | {"holdfast/COMMIT"}


def install(wheel: Path, path: Path) -> Path:
    """An empty environment with the wheel; returns its command. What the wheel requires is found where it is already:
    `make dist` installs that too, which takes longer than all tests here."""
    venv.create(path, with_pip=False)
    (site,) = path.glob("lib/python*/site-packages")
    (here,) = Path(sys.prefix).glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(path / "bin/python"), "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
    (site / "required.pth").write_text(f"{here}\n")
    return path / "bin" / "holdfast"


def test_the_bill_of_materials_names_every_package_once_with_its_licence() -> None:
    packages = sbom.shipped()
    bill = sbom.bill(packages)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    components = {one["name"]: one for one in bill["components"]}
    assert len(components) == len(bill["components"])
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    direct = {re.split(r"[<>=\[ ]", line)[0] for line in server}
    assert direct | {"psycopg-binary", "opentelemetry-sdk", "htmx.org", "uplot"} <= set(components)
    assert "pytest" not in components
    assert {name for name, one in components.items() if one["licenses"][0]["expression"] == "NOASSERTION"} == set()
    refs = {one["bom-ref"] for one in [*bill["components"], bill["metadata"]["component"]]}
    assert {one["ref"] for one in bill["dependencies"]} == refs
    assert {needed for one in bill["dependencies"] for needed in one["dependsOn"]} <= refs
    assert sbom.bill(packages) == bill, "it is the same each time it is made"


def test_the_text_of_every_licence_is_kept() -> None:
    text = sbom.licences(sbom.shipped())
    assert "(the package has no text of it)" not in text
    for name in ("holdfast", "rocksdict", "uvloop", "htmx.org", "uplot"):
        assert re.search(rf"^{re.escape(name)} \S+: ", text, re.MULTILINE)
