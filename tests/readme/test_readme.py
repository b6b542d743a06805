"""Every example of README.md runs as it stands, against a server started from the config.json that stands there too.
Only the ports are replaced."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme.blocks import README, ROOT, Block, blocks
from tests.readme.server import Ports, running_server

CURL = [block for block in blocks("bash") if block.text.startswith("curl")]
PYTHON = [block for block in blocks("python") if block.heading != "Tools"]
TOOLS = [block for block in blocks("python") if block.heading == "Tools"]
TOOL_SCRIPT = {
    "answers": [
        {"match": "sunny, 24 degrees", "text": "It is sunny in Paris."},
        {"text": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'},
    ]
}
"""The demo model's template knows no tools: a scripted model plays one that does."""
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Those of the running server."""
    home = tmp_path_factory.mktemp("readme")
    (home / ".models").symlink_to(ROOT / ".models")
    [config] = blocks("json")
    ports = Ports()
    with running_server(home, config.text, ports):
        yield ports


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_examples_are_found() -> None:
    assert (len(CURL), len(PYTHON), len(TOOLS)) == (2, 2, 1)


@pytest.mark.parametrize("block", CURL, ids=lambda block: f"line {block.line}")
def test_curl_example(block: Block, ports: Ports) -> None:
    output = run(["bash", "-c", ports.put_into(block.text)])
    if '"stream": true' not in block.text:
        assert json.loads(output)["choices"][0]["message"]["content"]
        return
    events = output.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    contents = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"]["content"] for event in events[:-1]]
    assert len(contents) > 1
    assert "".join(contents)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"line {block.line}")
def test_python_example(block: Block, ports: Ports) -> None:
    assert run([sys.executable, "-c", ports.put_into(block.text)]).strip()


def test_tools_example(tmp_path: Path) -> None:
    [config], [example], ports = blocks("json"), TOOLS, Ports()
    document = json.loads(config.text)
    document["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]["modelInstanceType"] = "StandardMock"
    document["MindserveConfig"] = {"script": "script.json"}
    (tmp_path / "script.json").write_text(json.dumps(TOOL_SCRIPT))
    with running_server(tmp_path, json.dumps(document), ports):
        output = run([sys.executable, "-c", ports.put_into(example.text)])
    assert output.splitlines() == ["get_weather {'city': 'Paris'}", "It is sunny in Paris."]


def test_commands_exist() -> None:
    commands = re.findall(r"^(scripts/\w+)", "\n".join(block.text for block in blocks("bash")), re.MULTILINE)
    assert commands == ["scripts/demo", "scripts/test"]
    assert all((ROOT / command).is_file() for command in commands)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert len(targets) > 5
    missing = [target for target in targets if not Path(ROOT / target).exists()]
    assert missing == []
