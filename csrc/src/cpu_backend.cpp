// The CPU back end: one worker thread runs jobs in order and may share large ones with others.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "backend.hpp"
#include "faults.hpp"
#include "gather.hpp"
#include "plan.hpp"

namespace ax {

namespace {

// Below this size threads cost more than they save.
constexpr uint64_t SHARED_JOB_BYTES = 16 << 20;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class CpuTicket : public Ticket {
 public:
  bool is_done() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_done_;
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return is_done_; });
  }

  Outcome outcome() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return outcome_;
  }

  void end(const Outcome &outcome) {
    std::lock_guard<std::mutex> lock(mutex_);
    outcome_ = outcome;
    is_done_ = true;
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_done_ = false;
  Outcome outcome_;
};

void copy_pieces(const Piece *pieces, size_t count) {
  for (size_t i = 0; i < count; ++i)
    std::memcpy(pointer(pieces[i].destination), pointer(pieces[i].source), pieces[i].bytes);
}

// Shares of about equal bytes, so that one long piece does not leave the others idle.
std::vector<Piece> cut(const std::vector<Piece> &pieces, uint64_t most_bytes) {
  std::vector<Piece> parts;
  for (const Piece &piece : pieces)
    for (uint64_t done = 0; done < piece.bytes; done += most_bytes)
      parts.push_back({piece.source + done, piece.destination + done, std::min(most_bytes, piece.bytes - done)});
  return parts;
}

void copy_shared(const std::vector<Piece> &pieces, uint64_t bytes, uint32_t threads) {
  const uint64_t share = bytes / threads + 1;
  const std::vector<Piece> parts = cut(pieces, std::min<uint64_t>(share, 1 << 20));
  std::vector<std::thread> helpers;
  size_t first = 0;
  for (uint32_t t = 0; t < threads; ++t) {
    size_t last = first;
    for (uint64_t taken = 0; last < parts.size() && (taken < share || t + 1 == threads); ++last) taken += parts[last].bytes;
    if (t + 1 == threads)
      copy_pieces(parts.data() + first, last - first);
    else
      helpers.emplace_back(copy_pieces, parts.data() + first, last - first);
    first = last;
  }
  for (std::thread &helper : helpers) helper.join();
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const ax_options &options)
      : threads_(options.threads), slot_bytes_(options.slot_bytes), worker_([this] { work(); }) {}

  ~CpuBackend() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  std::shared_ptr<Ticket> start(Job job, ax_fault &) override {
    auto ticket = std::make_shared<CpuTicket>();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.emplace_back(std::move(job), ticket);
    }
    changed_.notify_one();
    return ticket;
  }

  uint64_t slot_bytes() const override { return slot_bytes_; }

  void *allocate(uint64_t bytes, bool) override {
    void *memory = std::malloc(bytes);
    // Touched, so that the measurement excludes the first use of pages.
    if (memory != nullptr) std::memset(memory, 1, bytes);
    return memory;
  }

  void release(void *memory, bool) override { std::free(memory); }
  int32_t pin(uint64_t, uint64_t, ax_fault &) override { return AX_OK; }
  int32_t unpin(uint64_t, uint64_t, ax_fault &) override { return AX_OK; }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return is_closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto [job, ticket] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      ticket->end(run(job));
    }
  }

  Outcome run(const Job &job) noexcept {
    Outcome outcome;
    outcome.stats.strategy = job.strategy;
    outcome.stats.pages = job.sources.size() * job.pairs.size();
    outcome.stats.bytes = bytes_of(job);
    try {
      const double begun_s = now_s();
      outcome.stats.transfers = job.strategy == AX_STAGED ? run_staged(job) : run_direct(job);
      outcome.stats.seconds = now_s() - begun_s;
    } catch (...) {  // only allocation and thread creation throw here
      fail(outcome.fault, AX_MEMORY, AX_FIELD_MEMORY);
    }
    return outcome;
  }

  uint64_t run_direct(const Job &job) {
    std::vector<Piece> pieces = job.strategy == AX_PER_PAGE ? per_page(job) : coalesced(job);
    const uint64_t transfers = pieces.size(), bytes = bytes_of(job);
    plant_fault(pieces);
    if (threads_ > 1 && bytes >= SHARED_JOB_BYTES)
      copy_shared(pieces, bytes, threads_);
    else
      copy_pieces(pieces.data(), pieces.size());
    return transfers;
  }

  uint64_t run_staged(const Job &job) {
    slot_.resize(slot_bytes_);
    const StagedPlan plan = staged(job, slot_bytes_);
    const uint64_t slot = reinterpret_cast<uintptr_t>(slot_.data());
    for (const Chunk &chunk : plan.chunks) {
      const Task *tasks = plan.tasks.data() + chunk.first_task;
      const size_t task_count = chunk.last_task - chunk.first_task;
      std::vector<Piece> pieces;
      for (size_t r = chunk.first_run; r < chunk.last_run; ++r) {
        const Run &run = plan.runs[r];
        const uint64_t staged_at = slot + run.offset;
        if (job.direction == AX_STORE)
          pieces.push_back({staged_at, run.far, run.bytes});
        else
          pieces.push_back({run.far, staged_at, run.bytes});
      }
      plant_fault(pieces);
      if (job.direction == AX_STORE) gather_reference(tasks, task_count, slot);
      copy_pieces(pieces.data(), pieces.size());
      if (job.direction == AX_LOAD) scatter_reference(tasks, task_count, slot);
    }
    return plan.runs.size();
  }

  const uint32_t threads_;
  const uint64_t slot_bytes_;
  std::vector<char> slot_;  // the worker's alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Job, std::shared_ptr<CpuTicket>>> queue_;
  bool is_closing_ = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const ax_options &options) { return std::make_unique<CpuBackend>(options); }

}  // namespace ax
