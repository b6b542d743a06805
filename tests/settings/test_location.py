"""Where the file is looked for, and the addresses that the environment sets."""

import json
from pathlib import Path

import pytest

from mindserve.errors import ConfigError
from mindserve.settings.location import apply_environment, find_config, load_configuration, with_cache_home
from mindserve.settings.mindie import load

FILE = Path(__file__).parent / "data" / "config.json"


def test_the_first_of_option_file_variable_and_home_counts() -> None:
    environment = {"MIES_CONFIG_JSON_PATH": "/b/c.json", "MINDIE_LLM_HOME_PATH": "/h"}
    assert find_config(Path("/a.json"), environment) == Path("/a.json")
    assert find_config(None, environment) == Path("/b/c.json")
    assert find_config(None, {"MINDIE_LLM_HOME_PATH": "/h"}) == Path("/h/conf/config.json")
    with pytest.raises(ConfigError, match="--config-file"):
        find_config(None, {})


def test_relative_paths_start_at_the_home(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "config.json").write_text(FILE.read_text())
    for environment, option in (({}, conf / "config.json"), ({"MINDIE_LLM_HOME_PATH": str(tmp_path)}, None)):
        tls = load_configuration(option, environment).server.service.tls
        assert tls is not None
        assert tls.certificate == tmp_path / "security/certs/server.pem"


def test_container_addresses_win() -> None:
    server = apply_environment(load(FILE), {"MIES_CONTAINER_IP": "10.0.0.1"}).server
    assert (server.service.host, server.management.host) == ("10.0.0.1", "127.0.0.2")
    server = apply_environment(load(FILE), {"MIES_CONTAINER_MANAGEMENT_IP": "10.0.0.2"}).server
    assert (server.service.host, server.management.host, server.metrics.host) == ("127.0.0.1", "10.0.0.2", "10.0.0.2")


def test_one_container_address_moves_planes_that_were_together(tmp_path: Path) -> None:
    raw = json.loads(FILE.read_text())
    del raw["ServerConfig"]["managementIpAddress"]
    (tmp_path / "c.json").write_text(json.dumps(raw))
    server = load_configuration(tmp_path / "c.json", {"MIES_CONTAINER_IP": "10.0.0.1"}).server
    assert {server.service.host, server.management.host, server.metrics.host} == {"10.0.0.1"}


def test_prepared_models_lie_in_the_users_cache_unless_configured() -> None:
    settings = load(FILE)
    moved = with_cache_home(settings, {"XDG_CACHE_HOME": "/cache"})
    assert moved.engine.prepared_dir == Path("/cache/mindserve")
    assert with_cache_home(moved, {"XDG_CACHE_HOME": "/other"}) == moved
    assert with_cache_home(settings, {}) == settings


def test_a_wrong_container_address_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_environment(load(FILE), {"MIES_CONTAINER_IP": "host.example"})
    assert caught.value.param == "MIES_CONTAINER_IP"
