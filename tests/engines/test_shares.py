"""How replicas share the cores or GPUs of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_backend.engines.shares import core_shares, gpu_shares, visible_gpus, workers_of_one
from autellix_backend.settings import SettingsError


def test_each_replica_gets_as_many_cores() -> None:
    assert core_shares(2, [0, 1, 2, 5, 7], {}) == [
        {"VLLM_CPU_OMP_THREADS_BIND": "0,1", "OMP_NUM_THREADS": "2"},
        {"VLLM_CPU_OMP_THREADS_BIND": "2,5", "OMP_NUM_THREADS": "2"},
    ]


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_of_one_core_or_less_compute_in_one_thread_each(replicas: int) -> None:
    assert core_shares(replicas, [0, 1], {}) == [{"OMP_NUM_THREADS": "1"}] * replicas


@pytest.mark.parametrize("name", ["VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"])
def test_the_users_cpu_binding_is_kept(name: str) -> None:
    assert core_shares(2, [0, 1], {name: "1"}) == [{}, {}]


def test_gpus_are_split_by_the_need_of_one_replica() -> None:
    assert gpu_shares(2, ["4", "5", "6", "7", "8"], 2) == [
        {"CUDA_VISIBLE_DEVICES": "4,5"},
        {"CUDA_VISIBLE_DEVICES": "6,7"},
    ]


def test_too_few_gpus_name_the_setting() -> None:
    with pytest.raises(SettingsError, match=r"engine.replicas: is 3, which takes 6 GPUs, and 4 are visible"):
        gpu_shares(3, ["0", "1", "2", "3"], 2)


def test_the_gpus_are_those_that_the_user_left_visible(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3,GPU-ab"}, tmp_path) == ["3", "GPU-ab"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), 1),
        (("--tensor-parallel-size", "4"), 4),
        (("--tensor_parallel_size=2", "-pp", "3"), 6),
        (("-tp", "2", "--dtype", "float32"), 2),
    ],
)
def test_parallel_execution_takes_several_gpus(arguments: tuple[str, ...], expected: int) -> None:
    assert workers_of_one(arguments) == expected
