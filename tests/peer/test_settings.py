import math
from pathlib import Path
from typing import Any

import pytest

from peer.settings import Settings, cleaned_name, from_environment, host_name
from protocol.errors import UserError

ADDRESS = "/ip4/192.0.2.1/tcp/4711/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def test_the_defaults_are_valid():
    settings = Settings()
    assert (settings.batch, settings.threads, settings.device, settings.slowdown) == (8, 0, "auto", 1.0)
    assert settings.upload_mbit is None and settings.merge_wait is None
    assert settings.join == () and not settings.lockstep and not settings.json


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("name", "", "1 to 32 printable characters"),
        ("name", "x" * 33, "1 to 32 printable characters"),
        ("name", "a\x1b[2J", "1 to 32 printable characters"),
        ("out", Path(__file__), "must be a directory"),
        ("batch", 0, "must be at least 1"),
        ("threads", -1, "must be at least 0"),
        ("device", "gpu", "must be one of auto, cpu, cuda"),
        ("upload_mbit", 0.0, "must be above 0, in Mbit/s"),
        ("merge_wait", -1.0, "must be at least 0, in seconds"),
        ("linger", math.inf, "must be at least 0, in seconds"),
        ("slowdown", 0.5, "must be a factor of at least 1"),
        ("slowdown", math.nan, "must be a factor of at least 1"),
        ("listen", "127.0.0.1:4711", "must look like /ip4/127.0.0.1/tcp/0"),
        ("listen", "/ip4/127.0.0.1/udp/0/quic", "must look like"),
        ("listen", "/ip4/127.0.0.1/tcp/65536", "must look like"),
    ],
)
def test_a_mistake_names_the_field_the_value_and_what_would_be_right(field: str, value: Any, right: str):
    with pytest.raises(UserError) as error:
        Settings(**{field: value})
    shown = str(value) if isinstance(value, Path) else value
    assert str(error.value).startswith(f"{field} = {shown!r}: ")
    assert right in str(error.value)


@pytest.mark.parametrize("address", [ADDRESS, "/dns4/example.org/tcp/1/p2p/12D3KooW", "/ip6/::1/tcp/9/p2p/Qm1"])
def test_addresses_to_join(address: str):
    assert Settings(join=(address,)).join == (address,)


def test_an_address_to_join_needs_a_peer_id():
    with pytest.raises(UserError, match=r"join = '/ip4/192\.0\.2\.1/tcp/4711': must look like /ip4/"):
        Settings(join=(ADDRESS, "/ip4/192.0.2.1/tcp/4711"))


def test_every_setting_can_come_from_the_environment():
    environment = {
        "POTLUCK_NAME": "ada",
        "POTLUCK_OUT": "runs",
        "POTLUCK_BATCH": "4",
        "POTLUCK_THREADS": "2",
        "POTLUCK_DEVICE": "cpu",
        "POTLUCK_UPLOAD_MBIT": "20",
        "POTLUCK_MERGE_WAIT": "0.5",
        "POTLUCK_LINGER": "3",
        "POTLUCK_LOCKSTEP": "yes",
        "POTLUCK_SLOWDOWN": "2",
        "POTLUCK_JSON": "1",
        "POTLUCK_LISTEN": "/ip6/::1/tcp/4000",
        "POTLUCK_JOIN": f"{ADDRESS} {ADDRESS}",
        "HOME": "/home/ada",
    }
    assert from_environment({}, environment) == Settings(
        name="ada",
        out=Path("runs"),
        batch=4,
        threads=2,
        device="cpu",
        upload_mbit=20.0,
        merge_wait=0.5,
        linger=3.0,
        lockstep=True,
        slowdown=2.0,
        json=True,
        listen="/ip6/::1/tcp/4000",
        join=(ADDRESS, ADDRESS),
    )


def test_a_flag_overrides_the_environment_and_none_does_not():
    environment = {"POTLUCK_BATCH": "many", "POTLUCK_THREADS": "3"}
    settings = from_environment({"batch": 2, "threads": None}, environment)
    assert (settings.batch, settings.threads) == (2, 3)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POTLUCK_BATCH", "5")
    monkeypatch.setenv("POTLUCK_THREADS", "")
    assert from_environment().batch == 5
    assert from_environment().threads == 0


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("POTLUCK_BATCH", "many", r"environment variable POTLUCK_BATCH = 'many': must be a whole number"),
        ("POTLUCK_LINGER", "long", r"POTLUCK_LINGER = 'long': must be a number"),
        ("POTLUCK_JSON", "maybe", r"POTLUCK_JSON = 'maybe': must be 1, true, yes, 0, false or no"),
        ("POTLUCK_BACH", "4", r"POTLUCK_BACH: no such setting; did you mean POTLUCK_BATCH\?"),
        ("POTLUCK_BATCH", "0", r"batch = 0: must be at least 1"),
    ],
)
def test_a_mistake_in_the_environment_is_named(variable: str, value: str, message: str):
    with pytest.raises(UserError, match=message):
        from_environment({}, {variable: value})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ada-laptop.example.org", "ada-laptop.example.org"),
        ("x" * 40, "x" * 32),
        (" a\x1b[2J\n", "a[2J"),
        ("\udcff\x00", "peer"),
        ("", "peer"),
        ("y" * 31 + " z", "y" * 31),
    ],
)
def test_a_machine_s_name_is_made_to_fit(text: str, name: str):
    assert cleaned_name(text) == name
    assert Settings(name=cleaned_name(text)).name == name


def test_defaults_go_before_the_fields_own_and_after_everything_else():
    assert from_environment({}, {}, name="host").name == "host"
    assert from_environment({"name": None}, {"POTLUCK_NAME": "ada"}, name="host").name == "ada"
    assert from_environment({"name": "bob"}, {"POTLUCK_NAME": "ada"}, name="host").name == "bob"
    assert 1 <= len(host_name()) <= 32
