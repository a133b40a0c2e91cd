"""Faults to plant in a copy of the CUDA back end: what the tests over the stand-in must catch.

Each is an edit of one passage. All are compiled into one library, which runs the one that it is told to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BACKEND, PLAN = "cuda_backend.cu", "plan.cpp"


@dataclass(frozen=True, slots=True)
class Fault:
    """One edit: a passage that occurs once, a statement or an expression, and what takes its place."""

    name: str
    passage: str
    faulty: str
    mode: str = "schedules"
    """The plays that show it."""
    file: str = BACKEND


_GATE = "      gate.hold(first);"
_APART = "          if (!conflicts(earlier.footprint, made.footprint)) continue;"
_TOUCHED = "          earlier.ticket->ended_.hold(first);"
_EARLY = "          job.flags &= ~AX_SOURCE_STABLE;"
_RECORD_GATE = "      gate.record(reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(job.after_stream)));"
_FREE_HOLD = "      slot.is_free.hold(first);"
_READY_RECORD = "      slot.ready.record(first);"
_READY_HOLD = "      slot.ready.hold(second);"
_FREE_RECORD = "      slot.is_free.record(second);"
_TASKS = "    send_tasks(plan.tasks, ticket, lane.kernels);"
_GATHER = "        run_kernel(chunk, ticket, slot, true, is_wide, first);"
_SCATTER = "        run_kernel(chunk, ticket, slot, false, is_wide, second);"
_COPY_STORE = "        ticket.stats_.transfers += copy_runs(plan, chunk, slot, job, second);"
_COPY_LOAD = "        ticket.stats_.transfers += copy_runs(plan, chunk, slot, job, first);"
_END_STAGED = "    ticket.ended_.record(second);"
_END_DIRECT = "    ticket.ended_.record(lane.copies);"
_SINGLY = "      copy_singly(pieces, lane.copies);"
_BATCH = "      copy_batch(pieces, job, job.flags & AX_SOURCE_STABLE, lane.copies);"
_RUNS = "    copy_batch(pieces, job, job.direction == AX_LOAD && (job.flags & AX_SOURCE_STABLE), stream);"
_FORGET = "taken(cudaEventQuery(one.ticket->ended_.get())) == cudaSuccess"
_STREAM_END = "    taken(cudaStreamSynchronize(stream_));"
_TAKEN = "  if (error != cudaSuccess) cudaGetLastError();"
_FAR = "!only_read_far && touches(a.far, b.far)"
_NEAR = "!only_read_near && touches(a.near, b.near)"

ORDER = (
    Fault("the engine's stream is not waited for", _GATE, ""),
    Fault(
        "the wrong stream waits for the engine's",
        _GATE,
        "gate.hold(first == lane.copies ? lane.kernels : lane.copies);",
    ),
    Fault("the gate is recorded on a stream of ours", _RECORD_GATE, "gate.record(first);"),
    Fault("the gate is recorded on the default stream", _RECORD_GATE, "gate.record(nullptr);"),
    Fault("a job that is touched is not waited for", _TOUCHED, ""),
    Fault(
        "the beginning of a job that is touched is waited for", _TOUCHED, _TOUCHED.replace("ended_", "begun_")
    ),
    Fault(
        "a job of the same direction is not waited for",
        _APART,
        _APART.replace("if (", "if (earlier.footprint.direction == job.direction || "),
    ),
    Fault(
        "a job of the other direction is not waited for",
        _APART,
        _APART.replace("if (", "if (earlier.footprint.direction != job.direction || "),
    ),
    Fault("a job waits for one that it does not touch", _APART, "", "overlap"),
    Fault(
        "a job goes to the lane with the most to do",
        "a->bytes_under_way() < b->bytes_under_way()",
        "b->bytes_under_way() < a->bytes_under_way()",
        "overlap",
    ),
    Fault("a load reads early what a store still writes", _EARLY, ""),
    Fault("a slot is reused early", _FREE_HOLD, ""),
    Fault("the wrong stream waits for a slot", _FREE_HOLD, "slot.is_free.hold(second);"),
    Fault("a slot that is ready is not recorded", _READY_RECORD, ""),
    Fault("a slot is ready before it is filled", _READY_RECORD, "slot.ready.record(second);"),
    Fault("a slot is not waited for", _READY_HOLD, ""),
    Fault("the stream that fills a slot waits for itself", _READY_HOLD, "slot.ready.hold(first);"),
    Fault("a slot that is free is not recorded", _FREE_RECORD, ""),
    Fault("a slot is free before it is emptied", _FREE_RECORD, "slot.is_free.record(first);"),
    Fault("the tasks go by the wrong stream", _TASKS, "send_tasks(plan.tasks, ticket, lane.copies);"),
    Fault("a gather runs on the wrong stream", _GATHER, _GATHER.replace("first", "second")),
    Fault("a scatter runs on the wrong stream", _SCATTER, _SCATTER.replace("second", "first")),
    Fault("a staged store copies on the wrong stream", _COPY_STORE, _COPY_STORE.replace("second", "first")),
    Fault("a staged load copies on the wrong stream", _COPY_LOAD, _COPY_LOAD.replace("first", "second")),
    Fault(
        "the end of a staged job is recorded on the wrong stream", _END_STAGED, "ticket.ended_.record(first);"
    ),
    Fault(
        "the end of a direct job is recorded on the wrong stream",
        _END_DIRECT,
        "ticket.ended_.record(lane.kernels);",
    ),
    Fault("single pages go by the default stream", _SINGLY, "copy_singly(pieces, nullptr);"),
    Fault("single pages go by the stream of kernels", _SINGLY, "copy_singly(pieces, lane.kernels);"),
    Fault("a batch goes by the stream of kernels", _BATCH, _BATCH.replace("lane.copies", "lane.kernels")),
    Fault("a batch always reads its sources early", _BATCH, "copy_batch(pieces, job, true, lane.copies);"),
    Fault("a slot's copies read it early", _RUNS, "copy_batch(pieces, job, true, stream);"),
    Fault("a closed lane does not wait for its streams", _STREAM_END, ""),
    Fault("a job is forgotten while it runs", _FORGET, "true"),
    Fault(
        "a failed job is not waited for",
        "        taken(cudaStreamSynchronize(lane.kernels));",
        "",
        "failures",
    ),
    Fault(
        "a failed job's copies are not waited for",
        "        taken(cudaStreamSynchronize(lane.copies));",
        "",
        "failures",
    ),
    Fault("near memory is not compared", _NEAR, "false", file=PLAN),
    Fault("far memory is not compared", _FAR, "false", file=PLAN),
    Fault("what two stores only read is compared", _NEAR, "touches(a.near, b.near)", "overlap", file=PLAN),
    Fault("what two loads only read is compared", _FAR, "touches(a.far, b.far)", "overlap", file=PLAN),
)
"""Of order: what happens before what."""

OTHER = (
    Fault("a stream is left", "    taken(cudaStreamDestroy(stream_));", ""),
    Fault("an error is left to the thread", _TAKEN, "", "failures"),
    Fault("the device is not set", "    if (device_ != before_) must(cudaSetDevice(device_));", ""),
    Fault("the device is not given back", "    if (device_ != before_) taken(cudaSetDevice(before_));", ""),
    Fault("a job without pairs is staged", "!job.pairs.empty()", "true"),
    Fault("a kernel leaves out its last word", "i < words", "i + 1 < words"),
    Fault("a kernel's round of loads goes beyond its words", "i + last < words", "i < words"),
    Fault(
        "a kernel loads one word for another",
        "from[i + k * blockDim.x]",
        "from[i + (k ^ 1) * blockDim.x]",
    ),
    Fault("a kernel's blocks leave out tasks", "t += gridDim.x", "t += count"),
    Fault("a kernel ignores the place in the slot", "slot + task.offset", "slot"),
    Fault("words are taken to be aligned", "bits % 16 == 0", "true"),
    Fault(
        "a copy crosses registrations",
        "std::min(pinned_bytes(source, source + rest), pinned_bytes(destination, destination + rest))",
        "rest",
    ),
    Fault(
        "more is registered at once than drivers allow",
        "std::min(end - at, PIN_BYTES - at % PIN_BYTES)",
        "end - at",
    ),
    Fault("a batch takes memory that is not pinned", "!(job.flags & FAR_IS_PAGEABLE)", "true"),
    Fault(
        "a batch that the driver refuses is not made up for",
        "      has_batch_ = false;\n      return false;",
        "return true;",
    ),
    Fault("a failed pin leaves a part pinned", "      release_pins(base, at);", "", "starts"),
    Fault("a plane in the wrong memory is taken", "attributes.type == cudaMemoryTypeDevice", "true"),
    Fault("a device without code of ours is taken", "    must_have_code();", "", "reasons"),
    Fault("an old driver is no device", "error == cudaErrorInsufficientDriver", "false", "reasons"),
)
"""Of everything else."""

FAULTS = ORDER + OTHER


_CHOICE = """#include <cstdlib>
static bool is_planted(int fault) {
  static const int chosen = std::atoi(std::getenv("AX_FAULT"));
  return chosen == fault;
}
"""


def plant(source: str, file: str) -> str:
    """Return a source file with all faults that are in it, of which the program's environment chooses one.

    Raises:
        ValueError: a passage does not occur once.
    """
    planted: dict[str, str] = {}
    for number, fault in enumerate(FAULTS, 1):
        if fault.file != file:
            continue
        sound = planted.get(fault.passage, fault.passage)
        if fault.passage.rstrip().endswith(";"):
            planted[fault.passage] = f"if (is_planted({number})) {{ {fault.faulty} }} else {{ {sound} }}\n"
        else:
            planted[fault.passage] = f"(is_planted({number}) ? ({fault.faulty}) : ({sound}))"
    for passage in planted:
        if source.count(passage) != 1:
            raise ValueError(f"{file} has {source.count(passage)} of: {passage}")
    # In one go, as a fault may look like another's passage.
    sought = "|".join(map(re.escape, planted))
    return _CHOICE + re.sub(sought, lambda found: planted[found.group()], source)
