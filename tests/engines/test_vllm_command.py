"""What a device needs of vLLM's arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix_backend.engines.vllm_command import IN_PROCESS_EXECUTOR, device_arguments, environment_defaults

IN_PROCESS = ["--distributed-executor-backend", IN_PROCESS_EXECUTOR]
UNBOUND = environment_defaults("m", is_cpu=True)


def test_a_cpu_engine_neither_compiles_nor_has_a_worker_process() -> None:
    assert device_arguments("m", (), UNBOUND, is_cpu=True) == ["--enforce-eager", *IN_PROCESS]
    assert device_arguments("m", (), UNBOUND, is_cpu=False) == []


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "7")])
def test_one_core_is_left_to_the_http_server(cores: int, threads: str) -> None:
    assert environment_defaults("m", is_cpu=True, cores=cores)["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in environment_defaults("m", is_cpu=False, cores=cores)


@pytest.mark.parametrize("argument", ["--enforce-eager", "--no-enforce-eager", "--no_enforce_eager"])
def test_the_users_compile_option_is_kept(argument: str) -> None:
    assert device_arguments("m", (argument,), UNBOUND, is_cpu=True) == IN_PROCESS


@pytest.mark.parametrize(
    "arguments",
    [
        ("--distributed-executor-backend", "mp"),
        ("--distributed_executor_backend=mp",),
        ("--tensor-parallel-size", "2"),
        ("-pp=2",),
    ],
    ids=str,
)
def test_a_worker_process_that_the_user_wants_stays(arguments: tuple[str, ...]) -> None:
    assert device_arguments("m", arguments, UNBOUND, is_cpu=True) == ["--enforce-eager"]


def test_threads_are_bound_to_cores_by_vllms_worker_process() -> None:
    environ = {"VLLM_CPU_OMP_THREADS_BIND": "0,1"}
    assert device_arguments("m", (), environ, is_cpu=True) == ["--enforce-eager"]


@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_weights_of_float32_stay_so_on_a_cpu(tmp_path: Path, field: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({field: "float32"}))
    model = str(tmp_path)
    assert device_arguments(model, (), UNBOUND, is_cpu=True)[-2:] == ["--dtype", "float32"]
    assert "--dtype" not in device_arguments(model, (), UNBOUND, is_cpu=False)
    for wish in (("--dtype", "bfloat16"), ("--dtype=bfloat16",)):
        assert "float32" not in device_arguments(model, wish, UNBOUND, is_cpu=True)


@pytest.mark.parametrize("config", ['{"dtype": "bfloat16"}', "{}", "[]", "not json"])
def test_other_weights_are_left_to_vllm(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert "--dtype" not in device_arguments(str(tmp_path), (), UNBOUND, is_cpu=True)


def test_nothing_is_compiled_on_a_cpu_unless_the_user_wants_it() -> None:
    """vLLM would compile parts of its sampler at a request, which kills an engine without a compiler."""
    assert environment_defaults("m", is_cpu=True)["TORCH_COMPILE_DISABLE"] == "1"
    for wish in ("--no-enforce-eager", "--no_enforce_eager"):
        assert "TORCH_COMPILE_DISABLE" not in environment_defaults("m", (wish,), is_cpu=True)
    assert "TORCH_COMPILE_DISABLE" not in environment_defaults("m", is_cpu=False)
