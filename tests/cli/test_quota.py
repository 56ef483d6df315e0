"""`holdfast quota`."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_quotas_are_set_shown_and_dropped(shell: Shell) -> None:
    done = shell.done("quota", "set", "acme", "queues=3", "stored_bytes=10GiB", "groups=0")
    assert done.stderr == "Set queues, stored_bytes, groups of namespace acme.\n"
    found = shell.json("quota", "show", "acme")
    assert found["namespace"] == "acme"
    assert found["quotas"]["queues"] == {"limit": 3, "used": 0, "own": True}
    assert found["quotas"]["stored_bytes"]["limit"] == 10 << 30
    table = shell.done("quota", "show", "acme").stdout
    assert "10.0 GiB" in table
    assert "for this namespace" in table
    assert "none" in table
    dropped = shell.json("quota", "set", "acme", "queues=default", "stored_bytes=default", "groups=default")
    assert not any(one["own"] for one in dropped["quotas"].values())
    assert shell.json("quota", "show")["namespace"] == "default"


def test_what_is_no_limit_is_refused_before_anything_is_sent(shell: Shell) -> None:
    for given in ("queues", "queues=many", "queues=-1"):
        refused = shell.run("quota", "set", "acme", given)
        assert (refused.exit_code, given in refused.output) == (2, True)
    unknown = shell.run("quota", "set", "acme", "cows=1")
    assert (unknown.exit_code, "queues, partitions" in unknown.output) == (1, True)
