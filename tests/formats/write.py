"""Writes a data directory with the code as it is: `python -m tests.formats.write NAME`.

Makes tests/formats/NAME.tar.gz, and NAME.txt beside it, which tells what is in it. With `--short` the records lack the
fields that were added last (see scene.shorten). Run it before you change a record: the procedure is in core/records.py.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path

from holdfast.engine.engine import Engine
from holdfast.store.rocks import RocksStore
from tests.formats import scene

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a data directory with the code as it is.")
    parser.add_argument("name")
    parser.add_argument("--short", action="store_true", help="leave out the fields that were added last")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "data"
        scene.write(directory)
        if options.short:
            scene.shorten(directory)
        with tarfile.open(HERE / f"{options.name}.tar.gz", "w:gz") as archive:
            archive.add(directory, "data", filter=_plain)
        store = RocksStore(directory)
        engine = Engine(store, cell=1)
        engine.open(scene.START)
        (HERE / f"{options.name}.txt").write_text("\n".join(scene.dump(store, engine, scene.START)) + "\n")
        store.close()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without whose it was and what only a running store needs."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if Path(entry.name).name.startswith(("LOCK", "LOG")) else entry


if __name__ == "__main__":
    main()
