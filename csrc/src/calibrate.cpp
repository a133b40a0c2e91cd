#include "calibrate.hpp"

#include <algorithm>

#include "plan.hpp"

namespace ax {

namespace {

// Enough for a bulk copy to reach its speed, and little enough for a fast start-up.
constexpr uint64_t MOST_BYTES = 16 << 20;
constexpr uint64_t COUNTS[AX_TABLE_COUNTS] = {1, 16, 256, 4096};
constexpr int ROUNDS = 2;

// Memory that is released however the measurement ends.
class Arena {
 public:
  Arena(Backend &backend, bool is_near)
      : backend_(backend), is_near_(is_near), memory_(backend.allocate(2 * MOST_BYTES, is_near)) {}
  ~Arena() {
    if (memory_ != nullptr) backend_.release(memory_, is_near_);
  }
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;
  uint64_t base() const { return reinterpret_cast<uintptr_t>(memory_); }

 private:
  Backend &backend_;
  bool is_near_;
  void *memory_;
};

// Every second block of near memory to adjacent blocks of far memory, or back: nothing merges but what staging gathers.
Job scattered(uint64_t near, uint64_t far, uint64_t bytes, uint64_t count, uint32_t direction, uint32_t strategy) {
  const ax_plane near_plane{near, bytes, 2 * bytes, count}, far_plane{far, bytes, bytes, count};
  Job job;
  job.direction = direction;
  job.strategy = strategy;
  job.sources = {direction == AX_STORE ? near_plane : far_plane};
  job.destinations = {direction == AX_STORE ? far_plane : near_plane};
  for (uint64_t k = 0; k < count; ++k) {
    job.pairs.push_back({k, k});
    job.by_destination.push_back(static_cast<uint32_t>(k));
  }
  return job;
}

int32_t measure(Backend &backend, const Job &job, double &best_s, ax_fault &fault) {
  best_s = 0;
  for (int round = 0; round <= ROUNDS; ++round) {  // the first round warms up
    const std::shared_ptr<Ticket> ticket = backend.start(job, fault);
    if (ticket == nullptr) return fault.code;
    ticket->wait();
    const Outcome outcome = ticket->outcome();
    if (outcome.fault.code) {
      fault = outcome.fault;
      return fault.code;
    }
    if (round == 1 || (round > 1 && outcome.stats.seconds < best_s)) best_s = outcome.stats.seconds;
  }
  return AX_OK;
}

}  // namespace

int32_t calibrate(Backend &backend, ax_table &table, ax_fault &fault) {
  const Arena near(backend, true), far(backend, false);
  if (near.base() == 0 || far.base() == 0) return fail(fault, AX_MEMORY, AX_FIELD_MEMORY);
  for (uint32_t direction = 0; direction < 2; ++direction)
    for (uint32_t size = 0; size < AX_TABLE_SIZES; ++size)
      for (uint32_t count = 0; count < AX_TABLE_COUNTS; ++count)
        for (uint32_t strategy = AX_COALESCED; strategy <= AX_STAGED; ++strategy) {
          const uint64_t bytes = UINT64_C(4096) << size;
          const uint64_t pieces = std::min(COUNTS[count], MOST_BYTES / bytes);
          double &cell = table.seconds[direction][size][count][strategy - AX_COALESCED];
          // More pieces of this size than fit: as the class below, which was cut to the same number.
          if (count > 0 && pieces <= COUNTS[count - 1]) {
            cell = table.seconds[direction][size][count - 1][strategy - AX_COALESCED];
            continue;
          }
          const Job job = scattered(near.base(), far.base(), bytes, pieces, direction, strategy);
          if (const int32_t code = measure(backend, job, cell, fault)) return code;
          cell /= static_cast<double>(pieces);
        }
  return AX_OK;
}

}  // namespace ax
