// The device of the stand-in: streams of work, done one piece at a time in an order that a seed chooses among those that
// CUDA allows. What must come first is a graph; so what is unordered is known, whichever order is tried.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>

#include "memory.hpp"
#include "stand_in.hpp"

namespace stand_in {

struct Op;
using OpRef = std::shared_ptr<Op>;

// One piece of work: a copy, a block of a kernel, or a mark in a stream.
struct Op {
  std::function<void(const Op &)> run;
  size_t stream = 0;
  uint32_t tick = 0;
  uint64_t chain = 0;  // the most copies and blocks of kernels that end with this, each after the one before
  int device = 0;
  Clock clock;  // what is known to be done when this runs
  std::vector<Op *> needs;
  std::vector<OpRef> dependents;
  bool is_done = false;
  double done_at_ms = 0;
};

struct Stream {
  size_t number;
  int device;
  bool is_blocking;  // takes turns with the device's legacy stream
  uint32_t ticks = 0;
  OpRef last;
};

struct Event {
  int device;
  bool is_timed;
  OpRef op;
};

// A kernel that did what no kernel may.
struct KernelStop {};

class World {
 public:
  static World &get();

  void reset(const Settings &given);
  const Settings &settings() const { return settings_; }

  // Counts a call and lets the device work. The error is that of the device, or the one that a test asked for.
  cudaError_t enter(const char *name);

  Stream *stream(cudaStream_t handle);  // null: no such stream
  Event *event(cudaEvent_t handle);
  cudaStream_t add_stream(bool is_blocking);
  cudaEvent_t add_event(bool is_timed);
  bool remove_stream(cudaStream_t handle) { return streams_.erase(handle) > 0; }
  bool remove_event(cudaEvent_t handle) { return events_.erase(handle) > 0; }

  // Queues pieces of work that may run in any order, after all that the stream has, and after `also`.
  OpRef issue(Stream &stream, std::vector<std::function<void(const Op &)>> pieces, const OpRef &also = nullptr);
  // Works until this is done, or the device is lost; the host then knows of it.
  void finish(const OpRef &op);
  void finish_all(int device);
  void learn(const Op &op) { join(host_, op.clock); }
  bool flip(unsigned in = 2) { return random_() % in == 0; }

  void access(const Op &op, uint64_t address, uint64_t bytes, bool is_write, const Clock &clock);
  void access_by_host(uint64_t address, uint64_t bytes, bool is_write);
  void access_by_kernel(uint64_t destination, uint64_t source, uint64_t bytes);
  const Clock &host_clock() const { return host_; }
  void run_kernel_block(const Op &op, const std::function<void()> &block);
  void free_memory(uint64_t base);

  void add_fault(const std::string &what);
  std::vector<std::string> leftovers() const;

  std::recursive_mutex mutex;
  Memory memory;
  cudaError_t lost = cudaSuccess;
  uint64_t calls = 0, work = 0, copies = 0, longest_chain = 0;
  const char *failed_call = nullptr;
  std::vector<std::string> faults;

 private:
  void step(const std::set<const Op *> *only);
  OpRef take_ready(const std::set<const Op *> *only);
  void end(const OpRef &op);
  Stream &legacy(int device) { return legacy_[static_cast<size_t>(device)]; }

  Settings settings_;
  std::mt19937_64 random_;
  unsigned pace_ = 0;       // 0: works when it must; 1: now and then; 2: at once
  bool is_by_rank_ = false; // the stream of the least rank goes first
  bool is_focused_ = false; // does nothing that a wait does not need
  std::vector<uint64_t> ranks_;
  std::map<cudaStream_t, Stream> streams_;
  std::map<cudaEvent_t, Event> events_;
  std::deque<Stream> legacy_;
  uintptr_t next_handle_ = 0x1000;
  size_t next_stream_ = 1;
  std::map<Op *, OpRef> pending_;
  std::deque<OpRef> ready_;
  Clock host_;
  double now_ms_ = 0;
  const Op *kernel_ = nullptr;
  uint64_t frame_ = 0;

  bool is_register(uint64_t address) const;
};

// The thread's own state, as CUDA keeps it.
inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local bool is_armed = false;

}  // namespace stand_in
