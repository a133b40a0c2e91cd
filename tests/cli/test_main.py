"""The command line: lazy subcommands, clear errors, and exit codes."""

from __future__ import annotations

import argparse
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autellix_backend.cli import main as cli
from autellix_backend.cli.commands import COMMANDS
from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.engines.base import EngineStartError
from autellix_backend.install import pip_install
from autellix_backend.settings import Settings
from autellix_lab.demo.model_folder import MARKER


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTELLIX_CACHE_DIR", str(tmp_path / "cache"))


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("autellix: error: ")]
    assert len(errors) == 1
    assert lines[-1] == errors[0]
    return errors[0].removeprefix("autellix: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "/nowhere", "--port", "0"], "engine.model: '/nowhere' does not exist"),
        (["serve", "m", "--policy", "lottery"], "scheduler.policy (from --policy): is 'lottery'"),
        (["serve", "m", "--port", "x"], "gateway.port (from --port): is 'x'; expected a valid integer"),
        (["serve", "m", "--bounds", "2,1"], "scheduler.bounds (from --bounds): must increase"),
        (["serve", "m", "--host", "nowhere.invalid"], "gateway.host: 'nowhere.invalid' is unknown"),
        (
            ["serve", "m", "--port", "0", "--host", "0.0.0.0"],
            "gateway.host: is '0.0.0.0', which other machines may reach, and no key is asked; expected keys",
        ),
        (
            ["serve", "m", "--port", "0", "--engine-args=--port=1"],
            "engine.extra_args: --port is set by autellix",
        ),
        (["serve", "m", "--config", "/nowhere"], "--config: cannot read /nowhere"),
        (["serve", "--engine", "host:80"], "engine.urls (from --engine): is 'host:80'; expected an http://"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, and the line names the field and what is expected."""
    assert cli.main(arguments) == 2
    assert message in error_of(capsys)


def test_a_model_must_be_given_where_the_small_one_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autellix_backend.engines.replica.SMALL_MODEL_PACKAGE", "no_such_package")
    assert cli.main(["serve"]) == 2
    assert error_of(capsys).startswith("engine.model: is not given; expected a model, 'smollm2'")


def test_the_small_model_is_served_where_none_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model or an address that is given stays."""
    served: list[tuple[str | None, tuple[str, ...]]] = []

    async def serve(settings: Settings) -> int:
        served.append((settings.engine.model, settings.engine.urls))
        return 0

    monkeypatch.setattr("autellix_backend.cli.serve.serve", serve)
    monkeypatch.setattr("autellix_backend.engines.replica.SMALL_MODEL_PACKAGE", "json")
    for arguments in ([], ["m"], ["--engine", "http://h:1"]):
        assert cli.main(["serve", *arguments]) == 0
    assert served == [("smollm2", ()), ("m", ()), (None, ("http://h:1",))]
    assert capsys.readouterr().err == "autellix: no model is given: serving smollm2\n"


def test_a_taken_port_shows_before_the_engine_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """The port is bound before the engine starts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert cli.main(["serve", "/nowhere", "--port", str(port)]) == 2

    expected = (
        f"gateway.port: cannot listen on 127.0.0.1:{port} (Address already in use); expected a free port"
    )
    assert expected in error_of(capsys)


def test_a_missing_package_names_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subcommand without its packages names the extra to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for module in ("serve", "server"):
        monkeypatch.delitem(sys.modules, f"autellix_backend.cli.{module}", raising=False)

    assert cli.main(["serve", "m"]) == 2

    assert "needs uvicorn, which is not installed; expected `pip install" in error_of(capsys)


def test_a_missing_engine_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without vLLM, serve names the package to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    (tmp_path / "config.json").write_text("{}")

    assert cli.main(["serve", str(tmp_path), "--port", "0"]) == 2

    assert "engine: vLLM is not installed; expected `pip install" in error_of(capsys)


def test_a_failed_engine_and_ctrl_c_have_their_own_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed start exits with 1 and the engine's log, Ctrl-C with 130."""

    class Failing(ModuleType):
        def __init__(self, error: BaseException) -> None:
            super().__init__("serve")
            self.error = error

        def add_arguments(self, parser: argparse.ArgumentParser) -> None:
            pass

        def run(self, args: argparse.Namespace) -> int:
            raise self.error

    serve = COMMANDS["serve"].module
    start_error = EngineStartError("replica-0 ended", Path("/log"), "the last line")
    monkeypatch.setitem(sys.modules, serve, Failing(start_error))
    assert cli.main(["serve"]) == 1
    assert "replica-0 ended\nits log is /log\n" in capsys.readouterr().err

    monkeypatch.setitem(sys.modules, serve, Failing(KeyboardInterrupt()))
    assert cli.main(["serve"]) == 130


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`autellix --help` names all subcommands with what they do."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])

    text = capsys.readouterr().out
    assert all(re.search(rf"\n    {name}\s", text) for name in cli.all_commands())


@pytest.mark.parametrize("name", cli.all_commands())
def test_each_command_has_an_example_that_parses(name: str) -> None:
    """The help of every command ends with a command line that works."""
    command = cli.all_commands()[name]
    words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", command.example))
    assert words[:2] == ["autellix", name]
    cli.make_parser([name]).parse_args(words[1:])


def test_help_of_serve_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Defaults in the help are those of the settings."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["serve", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "port to listen on, 0 for any free one (default 8000)" in text
    assert "(default 0.25,0.5,1.0," in text


def test_help_needs_the_standard_library_only() -> None:
    """Without any extra, the help lists the commands, and a command names the extra it needs."""
    code = (
        "import sys\n"
        "class Standard:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        root = name.partition('.')[0]\n"
        "        if root not in sys.stdlib_module_names and not root.startswith('autellix'):\n"
        "            raise ModuleNotFoundError(f'no {root}', name=root)\n"
        "sys.meta_path.insert(0, Standard())\n"
        "from autellix_backend.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    help_page = run("--help")
    assert (help_page.returncode, help_page.stderr) == (0, "")
    assert "list the programs of a gateway" in help_page.stdout
    for name, extra in (("serve", "vllm"), ("keys", "gateway"), ("sim", "lab")):
        failed = run(name)
        assert failed.returncode == 2
        assert "which is not installed; expected `pip install" in failed.stderr
        assert pip_install(extra) in failed.stderr
        assert "Traceback" not in failed.stderr


def test_demo_model_prints_its_folder(
    demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints where the model is, and refuses a folder with other content."""
    assert cli.main(["demo-model", str(demo_model)]) == 0
    assert capsys.readouterr().out == f"{demo_model}\n"

    (tmp_path / MARKER).touch()
    assert cli.main(["demo-model", str(tmp_path)]) == 2
    assert "demo-model: " in error_of(capsys)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("list", "did you mean `autellix ps`?"),
        ("engine", "did you mean `autellix engines`?"),
        ("quite-another", "the commands are serve, vllm, config, "),
    ],
)
def test_an_unknown_command_gets_the_nearest_one_named(
    capsys: pytest.CaptureFixture[str], command: str, hint: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "--wide"])
    assert exit_.value.code == 2
    assert f"there is no command {command!r}; {hint}" in capsys.readouterr().err


def test_the_help_of_serve_lists_the_names_that_settings_may_have(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"one of {', '.join(LIVE_POLICY_NAMES)} (default boost)" in shown
    assert f"one of {', '.join(BALANCER_NAMES)} (default working_set)" in shown
