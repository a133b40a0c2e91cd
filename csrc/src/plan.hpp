// Planning: from a checked job to the list of copies that a strategy makes. Pure; every back end runs these lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checks.hpp"

namespace ax {

// One copy from memory to memory.
struct Piece {
  uint64_t source;
  uint64_t destination;
  uint64_t bytes;
};

// One copy between near memory and a slot of the staging ring: the work of a kernel's block.
struct Task {
  uint64_t near;
  uint64_t offset;
  uint64_t bytes;
};

// One copy between a slot and far memory: a transfer.
struct Run {
  uint64_t far;
  uint64_t offset;
  uint64_t bytes;
};

// What goes through one slot at a time.
struct Chunk {
  size_t first_task, last_task;
  size_t first_run, last_run;
  uint64_t bytes;
};

struct StagedPlan {
  std::vector<Task> tasks;
  std::vector<Run> runs;
  std::vector<Chunk> chunks;
};

// The largest task: small enough that one page of 2 MiB keeps many blocks of a kernel busy.
constexpr uint64_t TASK_BYTES = 32 << 10;

uint64_t bytes_of(const Job &job);
std::vector<Piece> per_page(const Job &job);
std::vector<Piece> coalesced(const Job &job);
StagedPlan staged(const Job &job, uint64_t slot_bytes);

// A plane of which a job touches some blocks, from the first byte of the first to the last byte of the last.
struct Extent {
  uint64_t begin, end;
  ax_plane plane;
};

// What a job touches in one memory: the same blocks of some planes. Both lists ascend.
struct Touched {
  std::vector<Extent> extents;
  std::vector<uint64_t> blocks;
  uint64_t longest = 0;  // bytes of an extent
};

struct Footprint {
  Touched near, far;
  uint32_t direction;
};

Footprint footprint(const Job &job);
// Whether one of two jobs writes bytes that the other reads or writes. Never false if so; it may be true for bytes between
// planes.
bool conflicts(const Footprint &a, const Footprint &b);

// The strategy to run: the job's, or for AX_AUTO the one that the table expects to be fastest.
uint32_t choose(const Job &job, const ax_table *table, uint64_t slot_bytes);

}  // namespace ax
