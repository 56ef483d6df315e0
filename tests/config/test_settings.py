"""Server configuration: four layers, their order, and what is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.config import Config, Field, LimitSettings, all_fields, load
from holdfast.config.kinds import Count, Duration, Size
from holdfast.errors import ConfigUnreadable, HoldfastError, InvalidConfig, UnknownSetting
from holdfast.units import MIB, MINUTE, SECOND
from tests.numbers import WILD_NUMBERS

FIELDS = {field.dotted: field for field in all_fields()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.toml"


def refusal(kind: type[HoldfastError], path: Path | None = None, **environ: str) -> str:
    with pytest.raises(kind) as caught:
        load(path, environ)
    return str(caught.value)


def test_without_any_layer_everything_is_the_default() -> None:
    config = load()
    assert config.limits == LimitSettings()
    assert config.node.data_dir == Path("data")
    assert set(config.origins) == set(FIELDS)
    assert set(config.origins.values()) == {"default"}


def test_each_layer_wins_over_the_one_below_and_its_origin_is_remembered(file: Path) -> None:
    file.write_text('[limits]\nmax_wait = "1m"\nlease_max = 10\nsettle_max = 20\n[store]\nkind = "memory"\n')
    environ = {"HOLDFAST_LIMITS_LEASE_MAX": "11", "HOLDFAST_STORE_KIND": "memory", "PATH": "/bin"}
    config = load(file, environ, {"store.kind": "rocks", "log.level": None})

    assert (config.limits.max_wait, config.origins["limits.max_wait"]) == (MINUTE, f"file {file}")
    assert (config.limits.lease_max, config.origins["limits.lease_max"]) == (
        11,
        "environment HOLDFAST_LIMITS_LEASE_MAX",
    )
    assert (config.store.kind, config.origins["store.kind"]) == ("rocks", "flag --store")
    assert (config.limits.settle_max, config.origins["limits.settle_max"]) == (20, f"file {file}")
    assert (config.log.level, config.origins["log.level"]) == ("info", "default")


def test_the_file_may_be_named_by_the_environment_but_a_given_path_wins(file: Path, tmp_path: Path) -> None:
    file.write_text("[node]\nnode_id = 7\n")
    other = tmp_path / "other.toml"
    other.write_text("[node]\nnode_id = 8\n")
    assert load(None, {"HOLDFAST_CONFIG": str(file)}).node.node_id == 7
    assert load(other, {"HOLDFAST_CONFIG": str(file)}).node.node_id == 8


def test_values_are_written_as_people_write_them(file: Path) -> None:
    file.write_text('[journal]\nsegment_bytes = "8MiB"\nsegment_age = 2.5\nenabled = false\ndirectory = "/lake"\n')
    journal = load(file, {"HOLDFAST_QUEUES_AUTO_CREATE": "Off", "HOLDFAST_LIMITS_INBOX_MESSAGES": "5_000"})
    assert journal.journal.segment_bytes == 8 * MIB
    assert journal.journal.segment_age == 2.5 * SECOND
    assert journal.journal.enabled is False
    assert journal.queues.auto_create is False
    assert journal.limits.inbox_messages == 5_000


def test_the_lake_is_in_the_data_directory_unless_its_path_is_absolute(file: Path) -> None:
    assert load(None, {}, {"node.data_dir": Path("/srv/hf")}).lake_dir == Path("/srv/hf/lake")
    file.write_text('[journal]\ndirectory = "/lake"\n')
    assert load(file).lake_dir == Path("/lake")


@pytest.mark.parametrize("url", ["s3a://bucket/lake", "s3:/bucket", "hdfs://name:8020/lake", "abfss://c@a.net/lake"])
def test_a_lake_in_storage_that_is_not_supported_is_refused_and_not_a_directory_of_that_name(url: str) -> None:
    assert "must be a path on this machine" in refusal(InvalidConfig, HOLDFAST_JOURNAL_DIRECTORY=url)
    with pytest.raises(InvalidConfig):
        load(None, {}, {"journal.directory": Path(url)})
    assert load(None, {"HOLDFAST_JOURNAL_DIRECTORY": "file:///srv/lake"}).lake_dir == Path("/srv/lake")


def test_the_home_directory_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load(None, {"HOLDFAST_NODE_DATA_DIR": "~/queues"}).node.data_dir == Path("/home/somebody/queues")


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        ("[limits]\nmax_wiat = 1\n", "limits.max_wiat", "limits.max_wait"),
        ("[limit]\nmax_wait = 1\n", "limit", "limits"),
        ("[limits]\nnode_id = 1\n", "limits.node_id", "node.node_id"),
        ("limits = 1\n", "limits", "limits"),
    ],
)
def test_an_unknown_name_in_the_file_is_refused_with_the_one_that_was_meant(
    file: Path, text: str, name: str, meant: str
) -> None:
    file.write_text(text)
    message = refusal(UnknownSetting, file)
    assert message.startswith(f"There is no setting {name} (file {file}). Did you mean {meant}")


def test_an_unknown_name_like_no_other_points_to_the_list(file: Path) -> None:
    file.write_text("[zzz]\nqqq = 1\n")
    assert "`holdfast config show` lists them all" in refusal(UnknownSetting, file)


@pytest.mark.parametrize("variable", ["HOLDFAST_LIMITS_MAX_WIAT", "HOLDFAST_LIMIT_MAX_WAIT"])
def test_a_misspelt_variable_is_refused(variable: str) -> None:
    message = refusal(UnknownSetting, None, **{variable: "1m"})
    assert message == f"There is no setting {variable} (environment). Did you mean HOLDFAST_LIMITS_MAX_WAIT?"


def test_variables_a_scheduler_puts_under_our_prefix_are_left_alone() -> None:
    load(
        None,
        {"HOLDFAST_SERVICE_HOST": "10.0.0.1", "HOLDFAST_PORT": "tcp://10.0.0.1:1883", "HOLDFAST_PORT_1883_TCP": "x"},
    )


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(UnknownSetting, match=r"no setting node\.datadir \(flag\)\. Did you mean node\.data_dir\?"):
        load(None, {}, {"node.datadir": "x"})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "HOLDFAST_NODE_NODE_ID",
            "1024",
            "cannot be '1024': it must be a whole number from 0 to 1023 (environment HOLDFAST_NODE_NODE_ID).",
        ),
        ("HOLDFAST_NODE_NODE_ID", "one", "it must be a whole number from 0 to 1023"),
        ("HOLDFAST_LIMITS_MAX_WAIT", "2h", "it must be a duration from 0s to 1h"),
        ("HOLDFAST_LIMITS_MAX_WAIT", "2 weeks", "it is not a duration: write 250ms"),
        ("HOLDFAST_STORE_CACHE_BYTES", "1KiB", "it must be a size from 1MiB to 1TiB"),
        ("HOLDFAST_STORE_CACHE_BYTES", "lots", "it is not a size"),
        ("HOLDFAST_STORE_KIND", "rock", "it must be rocks, memory or postgres; did you mean rocks?"),
        ("HOLDFAST_LOG_LEVEL", "LOUD", "it must be debug, info, warning or error"),
        ("HOLDFAST_QUEUES_AUTO_CREATE", "maybe", "it must be true or false"),
        ("HOLDFAST_NODE_DATA_DIR", " ", "it must be a path"),
        ("HOLDFAST_NODE_NAMESPACE", "$x", "it must be 1 to 255 bytes without '/'"),
        ("HOLDFAST_NODE_NAMESPACE", "", "it must be 1 to 255 bytes without '/'"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(variable: str, value: str, message: str) -> None:
    assert message in refusal(InvalidConfig, None, **{variable: value})


@pytest.mark.parametrize(
    "text", ["node_id = true", "node_id = 1.5", "data_dir = 3", "namespace = []", "shutdown_timeout = {}"]
)
def test_a_value_of_the_wrong_type_in_the_file_is_refused(file: Path, text: str) -> None:
    file.write_text(f"[node]\n{text}\n")
    assert f"(file {file})" in refusal(InvalidConfig, file)


def test_a_file_that_is_missing_or_no_toml_is_refused(file: Path) -> None:
    assert refusal(ConfigUnreadable, file) == f"Configuration file {file} cannot be read: No such file or directory."
    file.write_text("[node\n")
    assert re.search(r"it is not TOML: .*line 1", refusal(ConfigUnreadable, file))
    file.write_bytes(b"\xff\xfe")
    assert "it is not TOML" in refusal(ConfigUnreadable, file)


@pytest.mark.parametrize("field", all_fields(), ids=lambda field: field.dotted)
def test_every_setting_is_explained_and_its_default_is_allowed(field: Field) -> None:
    assert len(field.doc) > 40
    assert field.kind.read(field.kind.show(field.default)) == field.default


@pytest.mark.parametrize("field", all_fields(), ids=lambda field: field.dotted)
def test_every_setting_can_be_set_from_the_environment(field: Field) -> None:
    config = load(None, {field.variable: field.kind.show(field.default)})
    assert config.origins[field.dotted] == f"environment {field.variable}"
    assert getattr(getattr(config, field.section), field.name) == field.default


@pytest.mark.parametrize(
    "field", [f for f in all_fields() if isinstance(f.kind, Count | Duration | Size)], ids=lambda f: f.dotted
)
def test_every_number_has_a_range_whose_ends_are_allowed_and_no_more(field: Field) -> None:
    kind = field.kind
    assert isinstance(kind, Count | Duration | Size)
    for end in (kind.low, kind.high):
        assert kind.read(kind.show(end)) == end
    with pytest.raises(ValueError, match=re.escape(kind.allowed())):
        kind.read(kind.show(kind.high + 1))


def test_defaults_need_no_loader() -> None:
    assert Config().limits.lease_max == 1_000
    assert Config().queues.max_groups_per_queue == 64


@pytest.mark.parametrize("number", WILD_NUMBERS, ids=lambda text: text[:20])
def test_a_wild_number_is_taken_or_refused_by_every_setting(number: str, file: Path) -> None:
    """From the environment, as a number and as a text in the file."""
    for field in all_fields():
        section, _, name = field.dotted.partition(".")
        for text in (
            f"[{section}]\n{name} = {number.lower().replace('infinity', 'inf')}\n",
            f'[{section}]\n{name} = "{number}"\n',
        ):
            file.write_text(text)
            with suppress(ConfigUnreadable, InvalidConfig):
                load(file)
        with suppress(InvalidConfig):
            load(None, {field.variable: number})
