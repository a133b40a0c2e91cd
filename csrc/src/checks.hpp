// Checking a job: the input is a caller's memory, the output is owned, bounded and valid.
#pragma once

#include <cstdint>
#include <vector>

#include "autellix_swap.h"

namespace ax {

struct Pair {
  uint64_t source;
  uint64_t destination;
};

struct Job {
  uint32_t strategy = AX_AUTO;
  uint32_t direction = AX_STORE;
  uint32_t flags = 0;
  uint64_t after_stream = 0;
  std::vector<ax_plane> sources;
  std::vector<ax_plane> destinations;
  std::vector<Pair> pairs;           // as given
  std::vector<uint32_t> by_destination;  // numbers of pairs, ascending by destination block
};

// Fills `fault` and returns its code.
int32_t fail(ax_fault &fault, int32_t code, int32_t field, uint64_t index = 0);

int32_t check_job(const ax_job *given, Job &job, ax_fault &fault);
int32_t check_options(const ax_options *options, ax_fault &fault);

}  // namespace ax
