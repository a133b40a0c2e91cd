"""`autellix workload`: convert, generate and describe, with one clear line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix_backend.cli.main import main
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace_files import read_traces

CONVERSATION = {
    "id": "c",
    "conversations": [{"from": "human", "value": "12345678"}, {"from": "gpt", "value": "a"}],
}


@pytest.fixture
def sharegpt(tmp_path: Path) -> Path:
    path = tmp_path / "in.json"
    path.write_text(json.dumps([CONVERSATION]))
    return path


@pytest.mark.parametrize("options", [[], ["--format", "sharegpt"]], ids=["told", "named"])
def test_convert_writes_program_traces(
    sharegpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """The result is read by everything that reads traces; counts are the estimate's."""
    out = tmp_path / "out.jsonl.gz"

    assert main(["workload", "convert", str(sharegpt), str(out), *options]) == 0

    (program,) = read_traces(out)
    assert [(call.prefill_tokens, call.decode_tokens) for call in program.calls] == [(2, 1)]
    assert program.tokenizer == "estimate: 4 bytes per token"
    assert capsys.readouterr().out == f"{out}: 1 programs, 1 calls\n"


def test_convert_counts_with_a_tokenizer(sharegpt: Path, tmp_path: Path) -> None:
    """The trace says which."""
    pytest.importorskip("tokenizers")
    words = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps({"version": "1.0", "model": words}))
    out = tmp_path / "out.jsonl"

    assert main(["workload", "convert", str(sharegpt), str(out), "--tokenizer", str(tokenizer)]) == 0

    (program,) = read_traces(out)
    assert (program.calls[0].prefill_tokens, program.tokenizer) == (1, str(tokenizer))


def test_generate_writes_the_seed_s_programs(tmp_path: Path) -> None:
    """The same as the function makes."""
    out = tmp_path / "mixed.jsonl"

    assert (
        main(["workload", "generate", "mixed", str(out), "-n", "6", "--seed", "3", "--tree-scale", "0.2"])
        == 0
    )

    assert generate_programs("mixed", 6, 3, tree_scale=0.2) == read_traces(out)


def test_describe_prints_the_paper_s_rows_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row a source, then the paper's three."""
    monkeypatch.chdir(tmp_path)
    main(["workload", "generate", "react", "trace.jsonl", "-n", "5"])
    capsys.readouterr()

    assert main(["workload", "describe", "trace.jsonl", "chat", "-n", "20"]) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("│")] for line in lines if line.startswith("│")]
    assert [row[1] for row in rows] == [
        "trace.jsonl",
        "chat",
        "paper: ShareGPT",
        "paper: BFCL v3 multi-turn",
        "paper: LATS",
    ]
    assert "calls per program" in lines[1]
    assert "159.70" in lines[-2]


def test_describe_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """All statistics by name, and the paper's."""
    assert main(["workload", "describe", "map_reduce", "-n", "10", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["measured"]["map_reduce"]["programs"] == 10
    assert report["paper"]["tree"]["calls_per_program"] == 159.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "IN/absent.json", "IN/out"], "absent.json cannot be read"),
        (
            ["convert", "IN/bad.json", "IN/out"],
            "bad.json: format is unknown; expected --format recorded|",
        ),
        (["convert", "IN/bad.json", "IN/out", "--format", "bfcl"], "bad.json, line 1: line is not JSON"),
        (["convert", "IN/good.jsonl", "IN/no/out"], "No such file or directory"),
        (["convert", "IN/good.jsonl", "IN/out", "--tokenizer", "IN/bad.json"], "bad.json cannot be loaded"),
        (["describe", "poem"], "poem cannot be read"),
        (["describe", "IN/empty.json"], "empty.json holds no program"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """The exit code is 2, and the line names the file and what is wrong."""
    (tmp_path / "bad.json").write_text("poem")
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "good.jsonl").write_text('{"calls": [{"prefill_tokens": 1, "decode_tokens": 1}]}')

    assert main(["workload", *(argument.replace("IN", str(tmp_path)) for argument in arguments)]) == 2

    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("autellix: error: ")
    assert message in line
    assert captured.out == ""


@pytest.mark.parametrize("option", [["-n", "0"], ["--tree-scale", "0"], ["-n", "x"]])
def test_bad_options_end_with_2(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As argparse does."""
    with pytest.raises(SystemExit, match="2"):
        main(["workload", "describe", "chat", *option])

    assert option[0] in capsys.readouterr().err
