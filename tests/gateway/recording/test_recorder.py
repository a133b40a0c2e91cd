"""Programs recorded as traces: what is in them, when they are written, and what cannot be."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.gateway.open_calls import open_call

from autellix_backend.gateway import app as gateway_app
from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.recording import recorded_program
from autellix_backend.gateway.recording.recorder import ProgramRecorder
from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace
from autellix_backend.observe import line_writer
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.reports.receipt import Receipt
from autellix_backend.settings import GatewaySettings, Settings, SettingsError, settings_to_mapping
from autellix_lab.fakes.engine import FakeBehaviour, Fault
from autellix_lab.workload.trace_files import read_traces

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}
SESSIONS = "/autellix/v1/sessions"
PROGRAMS = "/autellix/v1/programs"


class FakeCalls:
    """Stands for the call registry: makes calls, and publishes them to the recorder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = CollectorRegistry()
        self.recorder = ProgramRecorder(path, self.registry, origin_s=100.0)
        self.recorder.open()
        self.count = 0

    def begin(self, now: float, program: str = "p", **headers: str) -> OpenCall:
        self.count += 1
        named = {"x-autellix-program-id": program, "x-autellix-call-id": f"made-{self.count}"}
        named |= {f"x-autellix-{key.replace('_', '-')}": value for key, value in headers.items()}
        call = open_call(named, key=str(self.count), began_s=now)
        self.recorder.on_call_begun(call)
        return call

    def settle(
        self,
        call: OpenCall,
        now: float,
        prompt: int | None = 10,
        output: int = 5,
        cached: int | None = 0,
        outcome: Outcome = Outcome.OK,
    ) -> None:
        call.usage = None if prompt is None else Usage(prompt, output, cached)
        receipt = Receipt(call_id=call.start.call_id, program_id="p", wait_s=0.0, service_s=0.0)
        self.recorder.on_call_settled(call.settled(receipt, outcome, now, ended_at_s=0.0))

    def call(
        self,
        start_s: float,
        finish_s: float,
        prompt: int = 10,
        output: int = 5,
        cached: int = 0,
        **headers: str,
    ) -> None:
        self.settle(self.begin(start_s, **headers), finish_s, prompt, output, cached)

    def close(self) -> list[ProgramTrace]:
        asyncio.run(self.recorder.close())
        assert self.recorder.program_count == 0
        return read_traces(self.path)

    def counted(self, result: str) -> float:
        labels = {"result": result}
        return self.registry.get_sample_value("autellix_recorded_programs_total", labels) or 0.0


@pytest.fixture
def fake(tmp_path: Path) -> FakeCalls:
    return FakeCalls(tmp_path / "trace.jsonl")


def test_a_chain_is_recorded_with_its_timings_and_tokens(fake: FakeCalls) -> None:
    fake.call(103.0, 104.0, 10, 5, 0, call_id="a", parent_ids="-", program_name="react")
    fake.call(106.5, 107.0, 20, 6, 12, call_id="b", parent_ids="a")
    (program,) = fake.close()
    assert (program.source, program.arrival_s) == ("react", 3.0)
    assert program.program_id.startswith("p~")
    assert program.calls == (
        CallTrace(
            id=0,
            parents=(),
            thread="0",
            prefill_tokens=10,
            decode_tokens=5,
            gap_before_s=0.0,
            kind="root",
            start_s=0.0,
            latency_s=1.0,
        ),
        CallTrace(
            id=1,
            parents=(0,),
            thread="0",
            prefill_tokens=20,
            decode_tokens=6,
            shared_prefix_tokens=12,
            prefix_from=0,
            gap_before_s=2.5,
            start_s=3.5,
            latency_s=0.5,
        ),
    )


def test_named_parents_beat_the_thread_and_the_last_one_sets_the_gap(fake: FakeCalls) -> None:
    fake.call(100, 101, call_id="root")
    left, right = (
        fake.begin(101, thread_id=name, call_id=name, parent_ids="root") for name in ("left", "right")
    )
    fake.settle(right, 103)
    fake.settle(left, 104)
    fake.call(104.5, 105, call_id="join", parent_ids="left,right,elsewhere")
    (program,) = fake.close()
    assert [call.parents for call in program.calls] == [(), (0,), (0,), (1, 2)]
    assert [call.gap_before_s for call in program.calls] == [0, 0, 0, 0.5]
    assert program.is_parallel


def test_without_parents_a_call_follows_the_last_ended_one_of_its_thread(fake: FakeCalls) -> None:
    fake.call(100, 101)
    first, second = fake.begin(101), fake.begin(101.5)
    fake.settle(first, 103)
    fake.settle(second, 104)
    fake.call(105, 106, thread_id="1")
    (program,) = fake.close()
    # The two in the middle overlap, so neither waited for the other.
    assert [call.parents for call in program.calls] == [(), (0,), (0,), ()]
    assert program.calls[3].gap_before_s == 5


def test_cached_tokens_are_bounded_by_what_the_earlier_call_held(fake: FakeCalls) -> None:
    fake.call(100, 101, 10, 5, 8)
    fake.call(101, 102, 40, 5, 32)
    fake.call(102, 103, 40, 5, 0)
    (program,) = fake.close()
    assert [(call.shared_prefix_tokens, call.prefix_from) for call in program.calls] == [
        (0, None),
        (15, 0),
        (0, None),
    ]


def test_a_call_without_work_is_left_out_and_its_children_go_to_its_parents(fake: FakeCalls) -> None:
    fake.call(100, 101, call_id="a")
    fake.settle(fake.begin(101, call_id="b"), 102, None, outcome=Outcome.UNAVAILABLE)
    fake.call(103, 104, call_id="c", parent_ids="b")
    (program,) = fake.close()
    assert [call.parents for call in program.calls] == [(), (0,)]
    assert program.calls[1].gap_before_s == 2


def test_an_aborted_call_counts_for_what_the_engine_did(fake: FakeCalls) -> None:
    fake.settle(fake.begin(100), 101, 10, 2, 0, Outcome.ABORTED)
    (program,) = fake.close()
    assert program.calls[0].decode_tokens == 2


def test_programs_without_token_counts_are_left_out_and_counted(fake: FakeCalls) -> None:
    fake.settle(fake.begin(100), 101, None)
    fake.call(102, 103)
    fake.settle(fake.begin(100, "q"), 101, None, outcome=Outcome.REJECTED)
    assert fake.close() == []
    assert (fake.counted("no_tokens"), fake.counted("empty")) == (1, 1)


def test_a_program_with_too_many_calls_is_left_out_and_frees_its_memory(
    fake: FakeCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_program, "MAX_CALLS", 3)
    for number in range(5):
        fake.call(100 + number, 100.5 + number)
    assert fake.recorder._programs["p"].calls == []
    assert fake.close() == []
    assert fake.counted("too_long") == 1


def test_the_end_of_a_program_writes_it(fake: FakeCalls) -> None:
    fake.call(100, 101)
    fake.recorder.on_program_ended("another")
    assert fake.recorder.program_count == 1
    fake.recorder.on_program_ended("p")
    assert fake.recorder.program_count == 0
    assert len(fake.close()) == fake.counted("written") == 1


def test_a_program_that_continues_after_its_end_is_written_at_its_next_end(fake: FakeCalls) -> None:
    running = fake.begin(100)
    fake.recorder.on_program_ended("p")
    assert fake.recorder.program_count == 1
    fake.settle(running, 102)
    fake.call(102, 103)
    fake.recorder.on_program_ended("p")
    fake.call(104, 105)
    programs = fake.close()
    assert [len(program.calls) for program in programs] == [2, 1]
    assert len({program.program_id for program in programs}) == 2


def test_calls_that_run_at_the_end_are_not_recorded(fake: FakeCalls) -> None:
    fake.call(100, 101)
    running = fake.begin(101)
    (program,) = fake.close()
    assert len(program.calls) == 1
    fake.settle(running, 102)


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.record_path: cannot write .*No such file"):
        FakeCalls(tmp_path / "none" / "trace.jsonl")
    with pytest.raises(SettingsError, match=r"gateway\.record_path: cannot write .*Is a directory"):
        FakeCalls(tmp_path)


def test_the_path_is_shown_as_text_and_may_not_be_compressed() -> None:
    settings = Settings(gateway=GatewaySettings(record_path=Path("t.jsonl")))
    assert settings_to_mapping(settings)["gateway"]["record_path"] == "t.jsonl"
    with pytest.raises(SettingsError, match=r"gateway\.record_path: is t\.jsonl\.gz"):
        GatewaySettings(record_path=Path("t.jsonl.gz"))


def test_a_later_write_error_is_logged_once_and_counted(
    fake: FakeCalls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(line_writer, "append_text", fail)
    for name in ("p", "q"):
        fake.call(100, 101, program=name)
    assert fake.close() == []
    assert fake.counted("failed") == 2
    assert len([line for line in caplog.messages if "No space left" in line]) == 1


def test_the_gateway_records_what_it_serves(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    async def main() -> None:
        async with serve(record_path=path) as rig:
            headers = {"X-Autellix-Program-ID": "p", "X-Autellix-Program-Name": "secret-free"}
            await rig.chat(headers)
            async with rig.client.post(
                rig.url + CHAT, json={**HELLO, "stream": True}, headers=headers
            ) as response:
                await response.read()
            async with rig.client.delete(rig.url + PROGRAMS + "/p") as response:
                assert response.status == 204
            await rig.chat({"X-Autellix-Session-ID": "s"})
            async with rig.client.delete(rig.url + SESSIONS + "/s") as response:
                assert response.status == 204
            await rig.chat()
            await rig.chat({"X-Autellix-Program-ID": "q", "X-Autellix-Final": "true"})
            await rig.chat({"X-Autellix-Program-ID": "left at the end"})

    asyncio.run(main())
    programs = read_traces(path)
    assert [len(program.calls) for program in programs] == [2, 1, 1, 1, 1]
    assert [program.source for program in programs] == ["secret-free", *["unnamed"] * 4]
    assert all(call.decode_tokens == 4 for program in programs for call in program.calls)
    assert "hello" not in path.read_text()
    assert "token0" not in path.read_text()


def test_engines_without_reports_are_recorded_by_their_usage(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    async def main() -> None:
        async with serve(record_path=path, has_socket=False) as rig:
            headers = {"X-Autellix-Program-ID": "p"}
            await rig.chat(headers)
            options = {"stream": True, "stream_options": {"include_usage": True}}
            async with rig.client.post(
                rig.url + CHAT, json={**HELLO, **options}, headers=headers
            ) as response:
                await response.read()
            headers = {"X-Autellix-Program-ID": "q"}
            async with rig.client.post(
                rig.url + CHAT, json={**HELLO, "stream": True}, headers=headers
            ) as response:
                await response.read()
            async with rig.client.delete(rig.url + PROGRAMS + "/q") as response:
                assert response.status == 204
            async with rig.client.get(rig.url + "/metrics") as response:
                text = await response.text()
            # A stream without usage tells nobody its length.
            assert 'autellix_recorded_programs_total{result="no_tokens"} 1.0' in text

    asyncio.run(main())
    (program,) = read_traces(path)
    assert [call.decode_tokens for call in program.calls] == [4, 4]


def test_reaped_programs_are_recorded_while_the_gateway_runs(
    serve: Any, wait_until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_app, "REAP_PERIOD_S", 0.02)
    path = tmp_path / "trace.jsonl"

    async def main() -> None:
        async with serve(FakeBehaviour(), record_path=path, program_idle_s=0.1) as rig:
            await rig.chat({"X-Autellix-Program-ID": "p"})
            await wait_until(lambda: path.stat().st_size > 0)

    asyncio.run(main())
    assert len(read_traces(path)) == 1


def test_a_failing_engine_leaves_an_empty_recording(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    async def main() -> None:
        async with serve(FakeBehaviour(fault=Fault.ERROR), record_path=path) as rig:
            await rig.chat({"X-Autellix-Program-ID": "p"})

    asyncio.run(main())
    assert read_traces(path) == []
