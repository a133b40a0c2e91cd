"""Commands, options, paths and names in the documentation exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.docs.pages import PAGES_READ, ROOT, SHELLS, Page
from tests.docs.parsers import BadCommandError, autellix_parser, check, check_options, script_parser

from autellix_backend.gateway.tenancy.file import read_tenants
from autellix_backend.settings import TenantLimits, load_settings

PACKAGES = {
    "autellix": "sdk",
    "autellix_wire": "sdk",
    "autellix_backend": "backend",
    "autellix_lab": "backend",
    "autellix_langchain": "integrations/langchain",
    "autellix_autogen": "integrations/autogen",
}
SCRIPT = re.compile(r"(benchmarks|scripts)/[\w./-]+")
# Not of `autellix` itself, which begins the names of files and of attributes of spans too.
DOTTED = re.compile(rf"\b(?:{'|'.join(name for name in PACKAGES if '_' in name)})(?:\.\w+)+\b")

each_page = pytest.mark.parametrize("page", PAGES_READ, ids=lambda page: page.name)
# The changelog has names that were changed since.
each_current_page = pytest.mark.parametrize(
    "page", [page for page in PAGES_READ if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)


def problems_of(commands: list[list[str]], check_words: Callable[[list[str]], None]) -> list[str]:
    found = []
    for words in commands:
        try:
            check_words(words)
        except BadCommandError as error:
            found.append(str(error))
    return found


def check_command(words: list[str]) -> None:
    """Check a whole command; one of a foreign program is right."""
    if ours := autellix_in(words):
        check(autellix_parser(ours[1]), ours[2:])
    elif words[0] == "make":
        check_targets(words[1:])
    elif script := script_of(words):
        check_script(script, words[words.index(script) + 1 :], is_whole=True)


def autellix_in(words: list[str]) -> list[str]:
    """Return the words of an `autellix` command, which may run in a container or as a unit does."""
    may_be_inside = words[0] in ("docker", "kubectl", "systemd-run")
    at = words.index("autellix") if "autellix" in words else -1
    return words[at:] if at == 0 or (at > 0 and may_be_inside) else []


def check_span(words: list[str]) -> None:
    """Check a command that the prose names, perhaps without all that it needs."""
    if words[0] == "autellix" and len(words) > 1 and words[1].isidentifier():
        check_options(autellix_parser(words[1]), words[2:])
    elif words[0] == "make" and len(words) > 1:
        check_targets(words[1:])
    elif script := script_of(words):
        check_script(script, words[words.index(script) + 1 :], is_whole=False)


def script_of(words: list[str]) -> str | None:
    return next((word for word in words[:2] if SCRIPT.fullmatch(word)), None)


def check_script(script: str, words: list[str], *, is_whole: bool) -> None:
    path = ROOT / script
    if not path.exists():
        raise BadCommandError(f"there is no {script}")
    if path.suffix != ".py" or not any(word.startswith("--") for word in words):
        return
    parser = script_parser(path)
    if parser is None:
        raise BadCommandError(f"{script} takes no arguments")
    (check if is_whole else check_options)(parser, words)


@pytest.mark.parametrize(
    # Those of the engine plugin take seconds to import the engine.
    "script",
    [
        path
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        if "vllm_plugin" not in path.read_text("utf-8")
    ],
    ids=lambda path: path.stem,
)
def test_every_benchmark_starts(script: Path) -> None:
    """One without arguments is a module of another."""
    is_program = "__main__" in script.read_text(encoding="utf-8")
    assert (script_parser(script) is not None) == is_program


def test_the_table_of_benchmarks_has_each_program() -> None:
    """What starts alone; others name the programs that they start."""
    folder = ROOT / "benchmarks"
    table = (folder / "README.md").read_text("utf-8")
    texts = {path: path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))}
    programs = [path for path, text in texts.items() if "__main__" in text]
    unknown = [
        path.name
        for path in programs
        if f"`{path.relative_to(folder)}" not in table
        and not any(path.name in text for other, text in texts.items() if other != path)
    ]
    assert programs
    assert unknown == []
    named = re.findall(r"`([\w/]+\.py)", table)
    assert [name for name in named if not (folder / name).exists()] == []


def check_targets(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    unknown = [word for word in words if "=" not in word and word not in targets]
    if unknown:
        raise BadCommandError(f"the Makefile has no target {unknown[0]}")


def test_the_code_of_a_request_s_life_exists() -> None:
    """The page links lines of a commit; what they define has not moved to another file since."""
    page = (ROOT / "docs/design/architecture.md").read_text("utf-8")
    links = re.findall(r"^\[\w+\.(\w+)\]: \S+/blob/[0-9a-f]+/(\S+)#L\d+$", page, re.MULTILINE)
    assert links
    assert [
        name
        for name, path in links
        if not re.search(rf"^ *(def|class) {name}\b", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    ] == []


@each_page
def test_commands_parse(page: Page) -> None:
    assert problems_of(page.commands(), check_command) == []


@each_page
def test_commands_can_be_copied(page: Page) -> None:
    """They have no prompts, and no comment that the site cuts at its right."""
    comments = re.findall(r"^(?=.{89}).*(?:^| )# .*", "\n".join(page.fenced(*SHELLS)), re.MULTILINE)
    assert page.prompts() + comments == []


@each_current_page
def test_the_package_is_installed_from_where_it_is(page: Page) -> None:
    """Without a release on PyPI that is the repository."""
    installed = [words[words.index("install") + 1 :] for words in page.commands() if "install" in words]
    ours = [word for words in installed for word in words if word.startswith("autellix")]
    assert [word for word in ours if "git+https://" not in word] == []


@each_current_page
def test_commands_in_the_prose_parse(page: Page) -> None:
    spans = [span.split() for span in page.spans() if span.split()]
    assert problems_of(spans, check_span) == []


@each_current_page
def test_names_of_modules_exist(page: Page) -> None:
    assert [name for name in set(DOTTED.findall(page.text)) if not exists(name)] == []


def exists(name: str) -> bool:
    """Return whether a dotted name is a module of ours or defined in one."""
    package, *parts = name.split(".")
    path = ROOT / PACKAGES[package] / package
    for at, part in enumerate(parts):
        if (path / part).is_dir():
            path /= part
        elif (path / f"{part}.py").is_file():
            path /= f"{part}.py"
            return at == len(parts) - 1 or parts[at + 1] in defined_in(path)
        else:
            return part in defined_in(path / "__init__.py")
    return True


def is_all(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def defined_in(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(alias.asname or alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            names |= set(ast.literal_eval(node.value)) if is_all(node) else set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


@each_page
def test_python_compiles_and_imports_what_exists(page: Page) -> None:
    for code in page.fenced("python"):
        tree = ast.parse(textwrap.dedent(code))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    check_import(alias.name, ())
            elif isinstance(node, ast.ImportFrom):
                check_import(node.module or "", [alias.name for alias in node.names])
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "autellix":
                check_import("autellix", (node.attr,))


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def check_import(module: str, names: Iterable[str]) -> None:
    """Check that a module of ours, or an installed one, has these names."""
    package = module.partition(".")[0]
    if package not in PACKAGES and importlib.util.find_spec(package) is None:
        return
    found = importlib.import_module(module)
    missing = [name for name in names if not (hasattr(found, name) or is_module(f"{module}.{name}"))]
    assert not missing, f"{module} has no {missing}"


@each_page
def test_json_can_be_read(page: Page) -> None:
    for code in page.fenced("json"):
        json.loads(code)


@each_page
def test_files_of_settings_and_tenants_can_be_used(page: Page, tmp_path: Path) -> None:
    for code in page.fenced("toml"):
        path = tmp_path / "example.toml"
        path.write_text(code, encoding="utf-8")
        if "[[tenant]]" in code:
            assert read_tenants(path, TenantLimits())
        else:
            load_settings(file=path, environ={}, command_line={})


@pytest.mark.parametrize(
    "command",
    [
        "autellix nothing",
        "autellix serve MODEL --no-such-option",
        "autellix sim run chat --no-such-option",
        "make nothing",
        "python benchmarks/nothing.py",
        "benchmarks/soak.py --no-such-option",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert problems_of([command.split()], check_command)
    assert problems_of([command.split()], check_span)


def test_a_wrong_command_inside_a_container_is_found() -> None:
    command = "kubectl exec deploy/ax-gateway -- autellix engines --no-such-option"
    assert problems_of([command.split()], check_command)
    assert not problems_of([["pip", "install", "autellix"]], check_command)


def test_faults_of_a_page_are_found() -> None:
    page = Page(
        ROOT / "page.md", "# A heading\n[x](#a-heading) [y](nowhere.md)\n```console\n$ make nothing\n```\n"
    )
    assert page.anchors() == {"a-heading"}
    assert page.links() == ["#a-heading", "nowhere.md"]
    assert page.commands() == [["make", "nothing"]]
    assert page.prompts() == ["$ make nothing"]
    assert not exists("autellix_backend.core.nothing")
    assert exists("autellix_backend.core.balance.make_balancer")


def test_commands_are_found_without_prompts() -> None:
    code = "# A comment.\nC=d make nothing\nexport A=b   # Another.\n\n"
    code += "curl -s http://x \\\n    -d '{\"a\":\n 1}' | head\n"
    page = Page(ROOT / "page.md", f"```sh\n{code}```\n```text\nmake nothing\n```\n")
    assert page.commands() == [
        ["make", "nothing"],
        ["export", "A=b"],
        ["curl", "-s", "http://x", "-d", '{"a":\n 1}'],
        ["head"],
    ]
    assert page.prompts() == []
