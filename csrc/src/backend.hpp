// The interface of back ends: memory, and jobs.
#pragma once

#include <cstdint>
#include <memory>

#include "checks.hpp"

namespace ax {

// One job's end.
struct Outcome {
  ax_stats stats{};
  ax_fault fault{};
};

// A job under way. All methods may be called by any thread, one at a time.
class Ticket {
 public:
  virtual ~Ticket() = default;
  virtual bool is_done() = 0;
  virtual void wait() = 0;
  // Only after the end.
  virtual Outcome outcome() = 0;
};

class Backend {
 public:
  // Waits for running jobs.
  virtual ~Backend() = default;
  // Queues a checked job whose strategy is decided. A null ticket means that `fault` says why not.
  virtual std::shared_ptr<Ticket> start(Job job, ax_fault &fault) = 0;
  virtual uint64_t slot_bytes() const = 0;
  // Memory for calibration, filled with some bytes; null if there is none. Far memory is as `pin` would make it.
  virtual void *allocate(uint64_t bytes, bool is_near) = 0;
  virtual void release(void *memory, bool is_near) = 0;
  virtual int32_t pin(uint64_t base, uint64_t bytes, ax_fault &fault) = 0;
  virtual int32_t unpin(uint64_t base, uint64_t bytes, ax_fault &fault) = 0;
};

std::unique_ptr<Backend> make_cpu_backend(const ax_options &options);
#ifdef AX_WITH_CUDA
// AX_OK if a CUDA device answers, else `fault` says why not.
int32_t find_cuda_device(ax_fault &fault);
// Null if `fault` says why not.
std::unique_ptr<Backend> make_cuda_backend(const ax_options &options, ax_fault &fault);
#endif

}  // namespace ax
