"""Where the configuration lies and what the environment adds to it. The only reader of the environment is the CLI."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from mindserve.errors import ConfigError
from mindserve.settings.mindie import home_of, load
from mindserve.settings.values import EngineKind, Plane, Settings


def find_config(option: Path | None, environment: Mapping[str, str]) -> Path:
    """`--config-file`, else MIES_CONFIG_JSON_PATH, else $MINDIE_LLM_HOME_PATH/conf/config.json. Raises ConfigError."""
    if option is not None:
        return option
    if path := environment.get("MIES_CONFIG_JSON_PATH"):
        return Path(path)
    if home := environment.get("MINDIE_LLM_HOME_PATH") or environment.get("MIES_INSTALL_PATH"):
        return Path(home) / "conf" / "config.json"
    raise ConfigError(
        "No model and no configuration: name a model, use --config-file, or set MIES_CONFIG_JSON_PATH or "
        "MINDIE_LLM_HOME_PATH."
    )


def home_for(file: Path, environment: Mapping[str, str]) -> Path:
    """The directory that relative paths in the file start from."""
    home = environment.get("MINDIE_LLM_HOME_PATH") or environment.get("MIES_INSTALL_PATH")
    return Path(home) if home else home_of(file)


def load_configuration(
    option: Path | None, environment: Mapping[str, str], *, kind: EngineKind | None = None
) -> Settings:
    """Settings of the file that `find_config` names, the container's addresses applied. Raises ConfigError."""
    file = find_config(option, environment)
    return apply_environment(load(file, home=home_for(file, environment), kind=kind), environment)


def apply_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """MIES_CONTAINER_IP and MIES_CONTAINER_MANAGEMENT_IP win over the file's addresses. Raises ConfigError."""
    server = settings.server
    service_host = _address(environment, "MIES_CONTAINER_IP")
    management_host = _address(environment, "MIES_CONTAINER_MANAGEMENT_IP")
    if management_host is None and server.management.host == server.service.host:
        management_host = service_host
    server = replace(
        server,
        service=_moved(server.service, service_host),
        management=_moved(server.management, management_host),
        metrics=_moved(server.metrics, management_host),
    )
    return replace(settings, server=server)


def with_cache_home(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Prepared models below XDG_CACHE_HOME, where it is set and the configuration names no place."""
    home = environment.get("XDG_CACHE_HOME")
    if settings.engine.prepared_dir is not None or not home:
        return settings
    return replace(settings, engine=replace(settings.engine, prepared_dir=Path(home) / "mindserve"))


def _address(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name)
    if not value:
        return None
    try:
        ip_address(value)
    except ValueError:
        raise ConfigError(f"{name} must be an IPv4 or IPv6 address, got {value[:80]!r}.", param=name) from None
    return value


def _moved(plane: Plane, host: str | None) -> Plane:
    return plane if host is None else replace(plane, host=host)
