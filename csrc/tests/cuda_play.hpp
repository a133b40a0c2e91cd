// One play: an engine beside the CUDA back end, in plain CUDA calls. It writes blocks on a stream of its own, submits jobs
// in both directions without waiting, and compares every byte with a model that does one thing after the other.
//
// Linked against the stand-in for CUDA (AX_STAND_IN) its calls may fail, and it asks for what no program may do.
#pragma once

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autellix_swap.h"

#ifdef AX_STAND_IN
#include "stand_in.hpp"
#else
namespace stand_in {
inline void touch(const void *, size_t, bool) {}
inline void arm(bool) {}
inline bool has_failed(const char *) { return false; }
inline bool has_lost_device() { return false; }
}  // namespace stand_in
#endif

namespace {

uint64_t number(const void *memory) { return reinterpret_cast<uintptr_t>(memory); }

// What went wrong in a play; it ends at the first.
struct Wrong {
  std::string what;
};

// The device is lost: the play's own calls fail too.
struct Lost {};

void check(bool is_right, const char *what) {
  if (!is_right) throw Wrong{what};
}

// A CUDA call of the play itself.
void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  if (stand_in::has_lost_device()) throw Lost{};
  throw Wrong{"a call of the test failed"};
}

int thread_device() {
  int device = 0;
  must(cudaGetDevice(&device));
  return device;
}

// A call of the library leaves the thread's device and its last error as they were.
template <typename Call>
int32_t ax(Call call) {
  const int before = thread_device();
  stand_in::arm(true);
  const int32_t code = call();
  stand_in::arm(false);
  check(cudaPeekAtLastError() == cudaSuccess, "an error is left behind");
  // A thread's device cannot be given back if that very call fails.
  if (stand_in::has_failed("cudaSetDevice")) must(cudaSetDevice(before));
  check(thread_device() == before, "the thread's device has changed");
  return code;
}

// Memory across a border that registrations may not cross: made once.
constexpr uint64_t EACH = UINT64_C(16) << 30;
char *border_memory(uint64_t bytes) {
  constexpr uint64_t ROOM = UINT64_C(4) << 20;
  static char *const border = [] {
    void *all = mmap(nullptr, 4 * EACH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) std::abort();
    char *found = static_cast<char *>(all) + (EACH - number(all) % EACH);
    if (found - ROOM < all) found += EACH;
    mprotect(found - ROOM, 2 * ROOM, PROT_READ | PROT_WRITE);
    return found;
  }();
  return border - bytes / 2 / 4096 * 4096;
}

enum FarKind { ALLOCATED, PINNED, PINNED_ACROSS, PAGEABLE };

// The planes of one memory, and what they must hold.
struct Side {
  uint64_t base = 0;
  uint64_t block_bytes = 0, blocks = 0;
  std::vector<ax_plane> planes;
  std::vector<char> model;
  std::set<uint64_t> unknown;  // blocks that a failed job may have written

  Side(std::mt19937_64 &random, size_t layers, uint64_t bytes, bool is_together) : block_bytes(bytes) {
    blocks = 3 + random() % 16;
    const uint64_t padding = 8 * (random() % 3 ? 0 : random() % 5);
    const uint64_t stride = is_together ? layers * bytes + padding : bytes + padding;
    for (size_t l = 0; l < layers; ++l)
      planes.push_back({64 + (is_together ? l * bytes : l * blocks * stride), bytes, stride, blocks});
    model.resize(128 + (is_together ? 1 : layers) * blocks * stride);
    for (char &one : model) one = static_cast<char>(random());
  }

  void place(void *memory) {
    base = number(memory);
    for (ax_plane &plane : planes) plane.base += base;
  }
  char *memory() const { return reinterpret_cast<char *>(static_cast<uintptr_t>(base)); }
  uint64_t offset(size_t layer, uint64_t block) const {
    return planes[layer].base - base + block * planes[layer].stride_bytes;
  }

  // Every byte, also those between the planes; those of unknown blocks are taken as they are.
  void compare(const char *found, const char *what) {
    for (const uint64_t block : unknown)
      for (size_t l = 0; l < planes.size(); ++l)
        std::memcpy(model.data() + offset(l, block), found + offset(l, block), block_bytes);
    unknown.clear();
    check(std::memcmp(model.data(), found, model.size()) == 0, what);
  }
};

struct Pending {
  uint64_t handle;
  std::set<uint64_t> near, far;
  std::vector<uint64_t> written;
  uint32_t direction, strategy;
  uint64_t pages, bytes;
};

class Play {
 public:
  // Into a context that others share, or one of its own (null).
  Play(uint64_t seed, ax_context *shared) : random_(seed), context_(shared), is_mine_(shared == nullptr) {
    device_ = is_mine_ && device_count() > 1 ? static_cast<int>(random_() % 2) : 0;
    const size_t layers = 1 + random_() % 4;
    const uint64_t bytes = random_() % 8 ? 8 * (1 + random_() % 40) : 16 * (1 + random_() % 350);
    near_ = std::make_unique<Side>(random_, layers, bytes, random_() % 2);
    far_ = std::make_unique<Side>(random_, layers, bytes, random_() % 2);
  }

  ~Play() {
    if (is_mine_) ax_close(context_);
    release();
  }

  // False: the library could not begin, as a call was made to fail.
  bool begin() {
    allocate_near();
    if (is_mine_ && !open()) return false;
    return allocate_far();
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) act();
    if (random_() % 2) finish_all();
  }

  // Jobs that nobody waited for are done when the context is closed.
  void close() {
    if (!is_mine_) return finish_all();
    if (far_kind_ == PINNED || far_kind_ == PINNED_ACROSS) {
      finish_all();
      const int32_t code = ax([&] { return ax_unpin(context_, far_->base, pinned_bytes(), nullptr); });
      check(code == AX_OK || may_fail, "unpin");
    }
    close_context();
    must(cudaStreamSynchronize(engine_));
    for (const Pending &one : pending_) forgive(one);
    compare();
  }

  // After the loss every call fails by its code, or succeeds with what was done before.
  void close_lost() {
    if (context_ == nullptr) return;
    for (const Pending &one : pending_) {
      ax_stats stats = new_stats();
      const int32_t code = ax([&] { return ax_wait(context_, one.handle, &stats, nullptr); });
      check(code == AX_DEVICE, "a wait after the loss");
    }
    std::vector<int64_t> pairs{0, 0};
    uint64_t handle = 0;
    const ax_job job = make_job(AX_STORE, AX_STAGED, pairs);
    check(ax([&] { return ax_submit(context_, &job, &handle, nullptr); }) == AX_DEVICE, "a job after the loss");
    close_context();
  }

  bool may_fail = false;  // one call fails
  uint64_t jobs = 0;

 private:
  static int device_count() {
    int count = 0;
    must(cudaGetDeviceCount(&count));
    return count;
  }

  static ax_stats new_stats() {
    ax_stats stats{};
    stats.struct_bytes = sizeof(stats);
    return stats;
  }

  void close_context() {
    ax_context *mine = std::exchange(context_, nullptr);
    ax([&] { return ax_close(mine), AX_OK; });
  }

  bool is_allowed(int32_t code) const { return may_fail && (code == AX_DEVICE || code == AX_MEMORY || code == AX_NO_DEVICE); }

  void allocate_near() {
    must(cudaSetDevice(device_));
    void *memory = nullptr;
    must(cudaMalloc(&memory, near_->model.size()));
    near_->place(memory);
    // 0 is the legacy stream, which all blocking streams take turns with.
    const uint64_t kind = random_() % 3;
    if (kind > 0) must(cudaStreamCreateWithFlags(&engine_, kind == 1 ? cudaStreamDefault : cudaStreamNonBlocking));
    must(cudaMemcpy(memory, near_->model.data(), near_->model.size(), cudaMemcpyHostToDevice));
    must(cudaMallocHost(&scratch_, near_->model.size()));
    // The legacy stream is that of the thread's device, so a play with it stays there.
    if (engine_ != nullptr) must(cudaSetDevice(0));
  }

  bool open() {
    ax_options options{};
    options.struct_bytes = sizeof(options);
    options.backend = AX_CUDA;
    options.device = static_cast<uint32_t>(device_);
    options.threads = 1;
    options.slot_bytes = 4096;
    options.slots = 2 + static_cast<uint32_t>(random_() % 3);
    const int32_t code = ax([&] { return ax_open(&options, &context_, nullptr); });
    check(code == AX_OK || is_allowed(code), "open");
    check((code == AX_OK) == (context_ != nullptr), "an open context");
    return code == AX_OK;
  }

  bool allocate_far() {
    const uint64_t bytes = far_->model.size();
    far_kind_ = static_cast<FarKind>(is_mine_ ? random_() % 4 : 0);
    void *memory = nullptr;
    if (far_kind_ == ALLOCATED) {
      must(cudaMallocHost(&memory, bytes));
    } else if (far_kind_ == PINNED_ACROSS) {
      memory = border_memory(bytes);
    } else {
      heap_.reset(static_cast<char *>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
      memory = heap_.get();
    }
    far_->place(memory);
    std::memcpy(memory, far_->model.data(), bytes);
    stand_in::touch(memory, bytes, true);
    if (far_kind_ != PINNED && far_kind_ != PINNED_ACROSS) return true;
    const int32_t code = ax([&] { return ax_pin(context_, far_->base, pinned_bytes(), nullptr); });
    check(code == AX_OK || is_allowed(code), "pin");
    return code == AX_OK;
  }

  // Where no memory is really locked, more of it than drivers allow at once.
  uint64_t pinned_bytes() const {
#ifdef AX_STAND_IN
    if (far_kind_ == PINNED_ACROSS) return far_->model.size() + EACH;
#endif
    return far_->model.size();
  }

  void release() {
    if (far_kind_ == ALLOCATED && far_->base != 0) cudaFreeHost(far_->memory());
    if (engine_ != nullptr) cudaStreamDestroy(engine_);
    cudaFreeHost(scratch_);
    if (near_->base != 0) cudaFree(near_->memory());
    cudaSetDevice(0);
    cudaGetLastError();
  }

  void act() {
    switch (random_() % 8) {
      case 0: return write_as_engine();
      case 1: return poll_one();
      case 2: return wait_one();
      case 3: return random_() % 3 ? copy_out_of_place() : finish_all();
      default: return submit();
    }
  }

  // New contents for some blocks, as a step of the engine makes them.
  void write_as_engine() {
    const auto count = 1 + random_() % near_->blocks;
    for (uint64_t n = 0; n < count; ++n) {
      const uint64_t block = random_() % near_->blocks;
      // An engine gives no block to a step that a job still uses, nor writes it while its source is in use.
      if (dirty_.count(block)) continue;
      finish_near(block);
      near_->unknown.erase(block);
      for (size_t l = 0; l < near_->planes.size(); ++l) {
        const uint64_t at = near_->offset(l, block);
        for (uint64_t i = 0; i < near_->block_bytes; ++i)
          near_->model[at + i] = static_cast<char *>(scratch_)[at + i] = static_cast<char>(random_());
        must(cudaMemcpyAsync(near_->memory() + at, static_cast<char *>(scratch_) + at, near_->block_bytes,
                             cudaMemcpyHostToDevice, engine_));
      }
      dirty_.insert(block);
    }
  }

  void sync_engine() {
    must(cudaStreamSynchronize(engine_));
    dirty_.clear();
  }

  ax_job make_job(uint32_t direction, uint32_t strategy, const std::vector<int64_t> &pairs) const {
    ax_job job{};
    job.struct_bytes = sizeof(job);
    job.strategy = strategy;
    job.direction = direction;
    job.sources = (direction == AX_STORE ? near_ : far_)->planes.data();
    job.destinations = (direction == AX_STORE ? far_ : near_)->planes.data();
    job.plane_count = near_->planes.size();
    job.pairs = pairs.data();
    job.pair_count = pairs.size() / 2;
    return job;
  }

  std::vector<int64_t> make_pairs(const Side &from, const Side &to) {
    std::vector<int64_t> pairs;
    const uint64_t first = random_() % from.blocks, wanted = random_() % 5 ? 2 : 1, skipped = random_() % 4;
    for (uint64_t block = 0; block < to.blocks; ++block) {
      if (skipped == 3 ? random_() % 3 == 0 : random_() % 4 < skipped) continue;
      pairs.push_back(static_cast<int64_t>(wanted == 1 ? (first + block) % from.blocks : random_() % from.blocks));
      pairs.push_back(static_cast<int64_t>(block));
    }
    // Pairs may be given in any order.
    if (random_() % 2)
      for (size_t k = pairs.size() / 2; k > 1; --k) {
        const size_t other = random_() % k;
        std::swap(pairs[2 * k - 2], pairs[2 * other]);
        std::swap(pairs[2 * k - 1], pairs[2 * other + 1]);
      }
    return pairs;
  }

  void submit() {
    const uint32_t direction = random_() % 2;
    Side &from = direction == AX_STORE ? *near_ : *far_, &to = direction == AX_STORE ? *far_ : *near_;
    const std::vector<int64_t> pairs = make_pairs(from, to);
    Pending made{};
    made.direction = direction;
    made.strategy = static_cast<uint32_t>(random_() % 4);
    for (size_t k = 0; k < pairs.size(); k += 2) {
      const auto source = static_cast<uint64_t>(pairs[k]), destination = static_cast<uint64_t>(pairs[k + 1]);
      (direction == AX_STORE ? made.near : made.far).insert(source);
      (direction == AX_STORE ? made.far : made.near).insert(destination);
      made.written.push_back(destination);
    }
    made.pages = pairs.size() / 2 * from.planes.size();
    made.bytes = made.pages * from.block_bytes;
    ax_job job = make_job(direction, made.strategy, pairs);
    choose_flags(job, made);
    const int32_t code = ax([&] { return ax_submit(context_, &job, &made.handle, nullptr); });
    ++jobs;
    if (code == AX_DEVICE && stand_in::has_lost_device()) throw Lost{};
    check(code == AX_OK || is_allowed(code), "submit");
    apply(pairs, from, to);
    if (code == AX_OK)
      pending_.push_back(made);
    else
      to.unknown.insert(made.written.begin(), made.written.end());
  }

  void apply(const std::vector<int64_t> &pairs, const Side &from, Side &to) {
    for (size_t k = 0; k < pairs.size(); k += 2) {
      const auto source = static_cast<uint64_t>(pairs[k]), destination = static_cast<uint64_t>(pairs[k + 1]);
      if (from.unknown.count(source))
        to.unknown.insert(destination);
      else
        to.unknown.erase(destination);
      for (size_t l = 0; l < from.planes.size(); ++l)
        std::memcpy(to.model.data() + to.offset(l, destination), from.model.data() + from.offset(l, source),
                    from.block_bytes);
    }
  }

  void choose_flags(ax_job &job, const Pending &made) {
    bool is_dirty = false;
    for (const uint64_t block : made.near) is_dirty |= dirty_.count(block) > 0;
    // What the engine wrote must be there: by order of the streams, or because the host has waited.
    if (is_dirty && random_() % 8 == 0) sync_engine();
    else if (is_dirty || random_() % 2) job.flags |= AX_AFTER_STREAM;
    if (made.direction == AX_LOAD && random_() % 2) job.flags |= AX_SOURCE_STABLE;
    job.after_stream = number(engine_);
  }

  // A job whose planes are in the wrong memories is refused and does nothing.
  void copy_out_of_place() {
    const std::vector<int64_t> pairs{0, 0};
    ax_job job = make_job(AX_LOAD, AX_STAGED, pairs);
    std::vector<ax_plane> elsewhere = near_->planes;
    for (ax_plane &plane : elsewhere) plane.base += number(scratch_) - near_->base;
    if (random_() % 2)
      job.destinations = elsewhere.data();
    else
      job.sources = elsewhere.data(), std::swap(job.sources, job.destinations);
    ax_stats stats = new_stats();
    const int32_t code = ax([&] { return ax_copy(context_, &job, &stats, nullptr); });
    if (code == AX_DEVICE && stand_in::has_lost_device()) throw Lost{};
    check(code == AX_PLACE || is_allowed(code), "a job out of place");
  }

  void poll_one() {
    if (pending_.empty()) return;
    const size_t which = random_() % pending_.size();
    ax_stats stats = new_stats();
    const int32_t code = ax([&] { return ax_poll(context_, pending_[which].handle, &stats, nullptr); });
    if (code != AX_PENDING) finished(which, code, stats);
  }

  void wait_one() {
    if (!pending_.empty()) finish(random_() % pending_.size());
  }

  void finish(size_t which) {
    ax_stats stats = new_stats();
    const int32_t code = ax([&] { return ax_wait(context_, pending_[which].handle, &stats, nullptr); });
    finished(which, code, stats);
  }

  void finished(size_t which, int32_t code, const ax_stats &stats) {
    const Pending one = pending_[which];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
    if (code == AX_DEVICE && stand_in::has_lost_device()) throw Lost{};
    check(code == AX_OK || is_allowed(code), "the end of a job");
    if (code != AX_OK) return;
    check(stats.strategy == (one.strategy == AX_AUTO ? uint32_t{AX_COALESCED} : one.strategy), "the strategy");
    check(stats.pages == one.pages && stats.bytes == one.bytes, "what was copied");
    check(one.strategy != AX_PER_PAGE || stats.transfers >= stats.pages, "the transfers of single pages");
    // Where registrations meet, a page is two transfers.
    check(one.strategy == AX_PER_PAGE || stats.bytes > 4096 || stats.transfers <= 2 * stats.pages, "the transfers");
    check(stats.seconds >= 0, "the time");
    // The host may use what is done at once: the blocks that no later job writes.
    for (const uint64_t block : one.far) {
      bool is_used = false;
      for (const Pending &other : pending_) is_used |= other.far.count(block) > 0;
      for (size_t l = 0; !is_used && l < far_->planes.size(); ++l) {
        const uint64_t at = far_->offset(l, block);
        stand_in::touch(far_->memory() + at, far_->block_bytes, true);
        check(far_->unknown.count(block) || !std::memcmp(far_->memory() + at, far_->model.data() + at, far_->block_bytes),
              "a block that is done");
      }
    }
  }

  void finish_near(uint64_t block) {
    for (size_t i = 0; i < pending_.size();) {
      if (pending_[i].near.count(block))
        finish(i);
      else
        ++i;
    }
  }

  void finish_all() {
    while (!pending_.empty()) finish(random_() % pending_.size());
    sync_engine();
    compare();
  }

  // A job of which one call failed may have been cut off.
  void forgive(const Pending &one) {
    if (may_fail) (one.direction == AX_STORE ? far_ : near_)->unknown.insert(one.written.begin(), one.written.end());
  }

  void compare() {
    std::vector<char> found(near_->model.size());
    must(cudaMemcpy(found.data(), near_->memory(), found.size(), cudaMemcpyDeviceToHost));
    near_->compare(found.data(), "near memory");
    stand_in::touch(far_->memory(), far_->model.size(), false);
    far_->compare(far_->memory(), "far memory");
  }

  struct Free {
    void operator()(void *memory) const { std::free(memory); }
  };

  std::mt19937_64 random_;
  ax_context *context_;
  const bool is_mine_;
  int device_ = 0;
  std::unique_ptr<Side> near_, far_;
  FarKind far_kind_ = PAGEABLE;
  std::unique_ptr<char, Free> heap_;
  cudaStream_t engine_ = nullptr;
  void *scratch_ = nullptr;
  std::set<uint64_t> dirty_;  // blocks that the engine's stream may still write
  std::vector<Pending> pending_;
};

}  // namespace
