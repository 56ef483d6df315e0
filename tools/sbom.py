"""What a release consists of: every package that an installation of the server brings along, with its licence.

    python -m tools.sbom dist      writes dist/holdfast-VERSION.cdx.json (CycloneDX 1.6) and
                                   dist/holdfast-VERSION.licences.txt (the texts)

Packages are those that `holdfast[server,postgres,otel]` requires, in the versions of the environment that this runs
in, which are those of requirements.lock. The scripts that the console serves are taken from the table beside them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
import uuid
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from holdfast import __version__

ROOT = Path(__file__).parents[1]
STATIC = ROOT / "src/holdfast/console/static"
EXTRAS = ("server", "postgres", "otel")
CLASSIFIER = "License :: OSI Approved :: "
IDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "MPL 2.0": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""What packages call their licences, by their SPDX names."""


def shipped() -> dict[str, Distribution]:
    """The packages of an installation, by name; Holdfast itself first."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement(f"holdfast[{','.join(EXTRAS)}]")]
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop(0)
        name = normal(requirement.name)
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found.setdefault(name, distribution(name))
        wanted += requirements(found[name], requirement.extras)
    return found


def requirements(package: Distribution, extras: set[str]) -> list[Requirement]:
    """What a package needs here, with these extras of it."""
    every = [Requirement(line) for line in package.requires or ()]
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [one for one in every if one.marker is None or any(map(one.marker.evaluate, environments))]


def normal(name: str) -> str:
    """As PyPI writes names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(package: Distribution) -> str:
    """The SPDX expression of a package."""
    about = package.metadata
    if expression := about.get_all("License-Expression"):
        return str(expression[0])
    classifiers = [line.removeprefix(CLASSIFIER) for line in about.get_all("Classifier") or () if CLASSIFIER in line]
    given = [*(about.get_all("License") or ()), *classifiers]
    named = [IDS.get(text.strip(), text.strip()) for text in given if text and "\n" not in text]
    known = [text for text in named if text in IDS.values() or re.fullmatch(r"[A-Za-z0-9.-]+", text)]
    return str((known or named or ["NOASSERTION"])[0])


def own_licence() -> str:
    """That of the wheel: an editable install may have been made from an older pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"])


def texts_of(package: Distribution) -> list[tuple[str, str]]:
    """The files of a package that have its licence."""
    files = [file for file in package.files or () if ".dist-info" in str(file)]
    pattern = re.compile(r"licen[cs]e|notice|copying|authors", re.IGNORECASE)
    return [(file.name, file.read_text()) for file in files if pattern.search(str(file.name))]


def vendored() -> list[tuple[str, str, str, str]]:
    """Scripts of others in the console: name, version, licence, text."""
    rows = re.findall(
        r"^\| `.*?\| (\S+) \| (\S+) \| (\S+), `(\S+)` \|$", (STATIC / "README.md").read_text(), re.MULTILINE
    )
    return [(name, version, licence, (STATIC / file).read_text()) for name, version, licence, file in rows]


def bill(packages: dict[str, Distribution]) -> dict[str, Any]:
    """The document."""
    names = {name: f"pkg:pypi/{name}@{package.version}" for name, package in packages.items()}
    components = [
        _component(name, package.version, names[name], licence_of(package))
        for name, package in packages.items()
        if name != "holdfast"
    ]
    scripts = [
        _component(name, version, f"pkg:npm/{name}@{version}", licence) for name, version, licence, _ in vendored()
    ]
    needs = {
        name: sorted(
            {names[normal(one.name)] for one in requirements(package, _extras(name)) if normal(one.name) in names}
        )
        for name, package in packages.items()
    }
    needs["holdfast"] += [script["bom-ref"] for script in scripts]
    dependencies = [{"ref": names[name], "dependsOn": needs[name]} for name in packages]
    dependencies += [{"ref": script["bom-ref"], "dependsOn": []} for script in scripts]
    content = json.dumps([components, scripts, dependencies]).encode()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                **_component("holdfast", __version__, names["holdfast"], own_licence()),
                "type": "application",
            }
        },
        "components": [*components, *scripts],
        "dependencies": dependencies,
    }


def _extras(name: str) -> set[str]:
    return set(EXTRAS) if name == "holdfast" else set()


def _component(name: str, version: str, purl: str, licence: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [{"expression": licence}],
    }


def licences(packages: dict[str, Distribution]) -> str:
    """The text of every licence."""
    parts: list[str] = []
    for name, package in packages.items():
        texts = "\n\n".join(text.strip("\n") for _, text in texts_of(package)) or "(the package has no text of it)"
        parts.append(f"{'=' * 100}\n{name} {package.version}: {licence_of(package)}\n{'=' * 100}\n\n{texts}\n")
    for name, version, licence, text in vendored():
        parts.append(f"{'=' * 100}\n{name} {version}: {licence}\n{'=' * 100}\n\n{text.strip()}\n")
    return "\n".join(parts)


def main(directory: Path) -> None:
    """Write both files."""
    packages = shipped()
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"holdfast-{__version__}"
    (directory / f"{stem}.cdx.json").write_text(json.dumps(bill(packages), indent=2) + "\n")
    (directory / f"{stem}.licences.txt").write_text(licences(packages))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
