// The CUDA back end: the copy engines move everything between the memories; kernels only gather and scatter in near memory.
//
// Each direction has two lanes, so that a small job passes a large one. A lane has two streams, one for copies and one for
// kernels, and a ring of staging slots in near memory. A job is queued whole by the call that starts it and never waits on
// the host; events order what is on the two streams, and jobs of which one writes what the other touches.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "backend.hpp"
#include "gather.hpp"
#include "plan.hpp"

namespace ax {

namespace {

// Drivers limit how much one registration may pin. Memory is cut at the multiples of this, so every copy knows where.
constexpr uint64_t PIN_BYTES = UINT64_C(16) << 30;
// A few blocks are faster than the bus; the rest of the device is for decoding.
constexpr uint32_t MOST_KERNEL_BLOCKS = 24;
// Tests let a few threads have several words each.
#ifndef AX_KERNEL_THREADS
#define AX_KERNEL_THREADS 256
#endif
constexpr uint32_t KERNEL_THREADS = AX_KERNEL_THREADS;
// What a thread has under way at once: memory answers late.
constexpr uint32_t LOADS = 4;
constexpr size_t LEAST_TASKS = 4096;
// Of a direction.
constexpr size_t LANES = 2;
// Our own flag beside the caller's: far memory that is not pinned, which the batch call may reject.
constexpr uint32_t FAR_IS_PAGEABLE = 1u << 31;

struct CudaError {
  cudaError_t error;
};

// Returns the error, and takes it from the thread: else the next check, perhaps not ours, would see it.
cudaError_t taken(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

void must(cudaError_t error) {
  if (taken(error) != cudaSuccess) throw CudaError{error};
}

ax_code code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return AX_MEMORY;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction: return AX_CAPABILITY;
    default: return AX_DEVICE;
  }
}

int32_t fail_device(ax_fault &fault, cudaError_t error) {
  fail(fault, code_of(error), AX_FIELD_NONE);
  fault.device_error = error;
  return fault.code;
}

// The thread's device belongs to the caller: borrowed for one call.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : device_(device) {
    must(cudaGetDevice(&before_));
    if (device_ != before_) must(cudaSetDevice(device_));
  }
  ~DeviceScope() {
    if (device_ != before_) taken(cudaSetDevice(before_));
  }
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;

 private:
  const int device_;
  int before_ = 0;
};

struct FreeNear {
  void operator()(void *memory) const { taken(cudaFree(memory)); }
};
struct FreeFar {
  void operator()(void *memory) const { taken(cudaFreeHost(memory)); }
};
template <typename T>
using Near = std::unique_ptr<T, FreeNear>;
template <typename T>
using Far = std::unique_ptr<T, FreeFar>;

template <typename T>
Near<T> allocate_near(uint64_t bytes) {
  void *memory = nullptr;
  must(cudaMalloc(&memory, bytes));
  return Near<T>(static_cast<T *>(memory));
}

template <typename T>
Far<T> allocate_far(uint64_t bytes) {
  void *memory = nullptr;
  must(cudaMallocHost(&memory, bytes));
  return Far<T>(static_cast<T *>(memory));
}

class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    taken(cudaStreamSynchronize(stream_));
    taken(cudaStreamDestroy(stream_));
  }
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(bool is_timed) {
    must(cudaEventCreateWithFlags(&event_, is_timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() { taken(cudaEventDestroy(event_)); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { must(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) const { must(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Equals gather_reference (IS_GATHER) and scatter_reference. Blocks stride over the tasks, threads over a task's words.
template <typename Word, bool IS_GATHER>
__global__ void move_tasks(const Task *tasks, uint32_t count, char *slot) {
  for (uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const Task task = tasks[t];
    Word *near = reinterpret_cast<Word *>(task.near);
    Word *staged = reinterpret_cast<Word *>(slot + task.offset);
    const Word *from = IS_GATHER ? near : staged;
    Word *to = IS_GATHER ? staged : near;
    const uint32_t words = static_cast<uint32_t>(task.bytes / sizeof(Word));
    const uint32_t last = (LOADS - 1) * blockDim.x;
    uint32_t i = threadIdx.x;
    // All loads of a round come before its stores, as the compiler may not move one over the other.
    for (; i + last < words; i += LOADS * blockDim.x) {
      Word held[LOADS];
#pragma unroll
      for (uint32_t k = 0; k < LOADS; ++k) held[k] = from[i + k * blockDim.x];
#pragma unroll
      for (uint32_t k = 0; k < LOADS; ++k) to[i + k * blockDim.x] = held[k];
    }
    for (; i < words; i += blockDim.x) to[i] = from[i];
  }
}

template <typename Word>
void launch(const Task *tasks, uint32_t count, char *slot, bool is_gather, cudaStream_t stream) {
  void *arguments[] = {&tasks, &count, &slot};
  must(cudaLaunchKernel(is_gather ? move_tasks<Word, true> : move_tasks<Word, false>,
                        dim3(std::min(count, MOST_KERNEL_BLOCKS)), dim3(KERNEL_THREADS), arguments, 0, stream));
}

// Tasks in the kernels' memory, and their source in pinned memory.
struct TaskBuffer {
  size_t capacity = 0;
  Far<Task> host;
  Near<Task> device;
};

struct Slot {
  explicit Slot(uint64_t bytes) : memory(allocate_near<char>(bytes)), ready(false), is_free(false) {}
  const Near<char> memory;
  Event ready;
  Event is_free;
};

class CudaBackend;

class CudaTicket : public Ticket {
 public:
  explicit CudaTicket(CudaBackend &backend) : backend_(backend), begun_(true), ended_(true) {}
  ~CudaTicket() override;

  // After a failure, too.
  bool is_done() override { return taken(cudaEventQuery(ended_.get())) != cudaErrorNotReady; }
  void wait() override { taken(cudaEventSynchronize(ended_.get())); }
  Outcome outcome() override;

 private:
  friend class CudaBackend;
  friend struct Lane;
  CudaBackend &backend_;
  Event begun_;
  Event ended_;
  ax_stats stats_{};
  TaskBuffer tasks_;
};

// A job under way, and what it touches.
struct Running {
  Footprint footprint;
  std::shared_ptr<CudaTicket> ticket;
};

// Streams and a ring for some of a direction's jobs. Its end waits for its streams; tasks that they still read are freed
// after that.
struct Lane {
  explicit Lane(const ax_options &options) {
    for (uint32_t i = 0; i < options.slots; ++i) ring.push_back(std::make_unique<Slot>(options.slot_bytes));
  }

  void forget_done() {
    const auto is_done = [](const Running &one) { return taken(cudaEventQuery(one.ticket->ended_.get())) == cudaSuccess; };
    running.erase(std::remove_if(running.begin(), running.end(), is_done), running.end());
  }

  uint64_t bytes_under_way() const {
    uint64_t bytes = 0;
    for (const Running &one : running) bytes += one.ticket->stats_.bytes;
    return bytes;
  }

  std::vector<std::unique_ptr<Slot>> ring;
  size_t next_slot = 0;
  Stream copies;  // after the ring, so that it outlives them
  Stream kernels;
  std::vector<Running> running;  // in the order of their submission
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const ax_options &options)
      : device_(static_cast<int>(options.device)), slot_bytes_(options.slot_bytes) {
    DeviceScope scope(device_);
    must_have_code();
    for (auto &lanes : lanes_)
      for (std::unique_ptr<Lane> &lane : lanes) lane = std::make_unique<Lane>(options);
  }

  std::shared_ptr<Ticket> start(Job job, ax_fault &fault) override {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      DeviceScope scope(device_);
      if (check_places(job, fault)) return nullptr;
      for (auto &lanes : lanes_)
        for (std::unique_ptr<Lane> &one : lanes) one->forget_done();
      Lane &lane = freest(lanes_[job.direction]);
      Running made{footprint(job), std::make_shared<CudaTicket>(*this)};
      try {
        enqueue(job, made, lane);
      } catch (...) {
        // Queued work already uses the ticket's buffers.
        taken(cudaStreamSynchronize(lane.copies));
        taken(cudaStreamSynchronize(lane.kernels));
        throw;
      }
      lane.running.push_back(made);
      return made.ticket;
    } catch (const CudaError &error) {
      fail_device(fault, error.error);
      return nullptr;
    }
  }

  uint64_t slot_bytes() const override { return slot_bytes_; }

  void *allocate(uint64_t bytes, bool is_near) override {
    try {
      DeviceScope scope(device_);
      return is_near ? filled(allocate_near<void>(bytes), bytes) : filled(allocate_far<void>(bytes), bytes);
    } catch (const CudaError &) {
      return nullptr;
    }
  }

  void release(void *memory, bool is_near) override { taken(is_near ? cudaFree(memory) : cudaFreeHost(memory)); }

  int32_t pin(uint64_t base, uint64_t bytes, ax_fault &fault) override {
    uint64_t at = base;
    try {
      DeviceScope scope(device_);
      for (; at < base + bytes; at += pinned_bytes(at, base + bytes))
        must(cudaHostRegister(pointer(at), pinned_bytes(at, base + bytes), cudaHostRegisterPortable));
      return AX_OK;
    } catch (const CudaError &error) {
      release_pins(base, at);
      return fail_device(fault, error.error);
    }
  }

  int32_t unpin(uint64_t base, uint64_t bytes, ax_fault &fault) override {
    const cudaError_t error = release_pins(base, base + bytes);
    return error == cudaSuccess ? AX_OK : fail_device(fault, error);
  }

  // A ticket's tasks are returned for reuse.
  void give_back(TaskBuffer buffer) {
    std::lock_guard<std::mutex> lock(spare_mutex_);
    spare_.push_back(std::move(buffer));
  }

 private:
  template <typename Memory>
  static void *filled(Memory memory, uint64_t bytes) {
    must(cudaMemset(memory.get(), 1, bytes));
    must(cudaDeviceSynchronize());
    return memory.release();
  }

  // Machine code or PTX that the device can run: else the first kernel would fail, long after the start.
  static void must_have_code() {
    cudaFuncAttributes attributes{};
    must(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(&move_tasks<uint4, true>)));
  }

  bool is_in_place(const ax_plane &plane, bool is_near, uint32_t &flags) {
    cudaPointerAttributes attributes{};
    must(cudaPointerGetAttributes(&attributes, pointer(plane.base)));
    if (is_near) return attributes.type == cudaMemoryTypeDevice && attributes.device == device_;
    if (attributes.type == cudaMemoryTypeUnregistered) flags |= FAR_IS_PAGEABLE;
    return attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeUnregistered;
  }

  int32_t check_places(Job &job, ax_fault &fault) {
    const bool is_store = job.direction == AX_STORE;
    for (size_t i = 0; i < job.sources.size(); ++i) {
      if (!is_in_place(job.sources[i], is_store, job.flags)) return fail(fault, AX_PLACE, AX_FIELD_SOURCES, i);
      if (!is_in_place(job.destinations[i], !is_store, job.flags)) return fail(fault, AX_PLACE, AX_FIELD_DESTINATIONS, i);
    }
    return AX_OK;
  }

  using Lanes = std::array<std::unique_ptr<Lane>, LANES>;

  static Lane &freest(const Lanes &lanes) {
    const auto has_less = [](const auto &a, const auto &b) { return a->bytes_under_way() < b->bytes_under_way(); };
    return **std::min_element(lanes.begin(), lanes.end(), has_less);
  }

  void enqueue(Job &job, const Running &made, Lane &lane) {
    // A job without pairs has nothing to stage, and its two streams nothing that orders them.
    const bool is_staged = job.strategy == AX_STAGED && !job.pairs.empty();
    // All of a job comes after what is first on this stream: the other stream waits for its slots.
    const cudaStream_t first = is_staged && job.direction == AX_STORE ? lane.kernels : lane.copies;
    if (job.flags & AX_AFTER_STREAM) {
      Event gate(false);
      gate.record(reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(job.after_stream)));
      gate.hold(first);
    }
    for (const Lanes &lanes : lanes_)
      for (const std::unique_ptr<Lane> &one : lanes)
        for (const Running &earlier : one->running) {
          if (!conflicts(earlier.footprint, made.footprint)) continue;
          earlier.ticket->ended_.hold(first);
          job.flags &= ~AX_SOURCE_STABLE;  // what that job writes may not be read early
        }
    CudaTicket &ticket = *made.ticket;
    ticket.stats_.strategy = job.strategy;
    ticket.stats_.pages = job.sources.size() * job.pairs.size();
    ticket.stats_.bytes = bytes_of(job);
    if (is_staged)
      enqueue_staged(job, lane, ticket);
    else
      enqueue_direct(job, lane, ticket);
  }

  void enqueue_direct(const Job &job, Lane &lane, CudaTicket &ticket) {
    const std::vector<Piece> pieces = cut_at_borders(job.strategy == AX_PER_PAGE ? per_page(job) : coalesced(job));
    ticket.stats_.transfers = pieces.size();
    ticket.begun_.record(lane.copies);
    if (job.strategy == AX_PER_PAGE)
      copy_singly(pieces, lane.copies);
    else
      copy_batch(pieces, job, job.flags & AX_SOURCE_STABLE, lane.copies);
    ticket.ended_.record(lane.copies);
  }

  void enqueue_staged(const Job &job, Lane &lane, CudaTicket &ticket) {
    const bool is_store = job.direction == AX_STORE;
    const cudaStream_t first = is_store ? lane.kernels : lane.copies;
    const cudaStream_t second = is_store ? lane.copies : lane.kernels;
    const StagedPlan plan = staged(job, slot_bytes_);
    ticket.begun_.record(first);
    send_tasks(plan.tasks, ticket, lane.kernels);
    const bool is_wide = is_aligned_16(plan.tasks);
    for (const Chunk &chunk : plan.chunks) {
      Slot &slot = *lane.ring[lane.next_slot++ % lane.ring.size()];
      slot.is_free.hold(first);
      if (is_store)
        run_kernel(chunk, ticket, slot, true, is_wide, first);
      else
        ticket.stats_.transfers += copy_runs(plan, chunk, slot, job, first);
      slot.ready.record(first);
      slot.ready.hold(second);
      if (is_store)
        ticket.stats_.transfers += copy_runs(plan, chunk, slot, job, second);
      else
        run_kernel(chunk, ticket, slot, false, is_wide, second);
      slot.is_free.record(second);
    }
    ticket.ended_.record(second);
  }

  static bool is_aligned_16(const std::vector<Task> &tasks) {
    uint64_t bits = 0;
    for (const Task &task : tasks) bits |= task.near | task.offset | task.bytes;
    return bits % 16 == 0;
  }

  void send_tasks(const std::vector<Task> &tasks, CudaTicket &ticket, cudaStream_t stream) {
    ticket.tasks_ = take_buffer(tasks.size());
    std::copy(tasks.begin(), tasks.end(), ticket.tasks_.host.get());
    must(cudaMemcpyAsync(ticket.tasks_.device.get(), ticket.tasks_.host.get(), tasks.size() * sizeof(Task),
                         cudaMemcpyHostToDevice, stream));
  }

  TaskBuffer take_buffer(size_t count) {
    std::lock_guard<std::mutex> lock(spare_mutex_);
    for (size_t i = 0; i < spare_.size(); ++i) {
      if (spare_[i].capacity < count) continue;
      TaskBuffer found = std::move(spare_[i]);
      spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    TaskBuffer made;
    made.capacity = LEAST_TASKS;
    while (made.capacity < count) made.capacity *= 2;
    made.host = allocate_far<Task>(made.capacity * sizeof(Task));
    made.device = allocate_near<Task>(made.capacity * sizeof(Task));
    return made;
  }

  static void run_kernel(const Chunk &chunk, CudaTicket &ticket, Slot &slot, bool is_gather, bool is_wide,
                         cudaStream_t stream) {
    const Task *tasks = ticket.tasks_.device.get() + chunk.first_task;
    const auto count = static_cast<uint32_t>(chunk.last_task - chunk.first_task);
    if (is_wide)
      launch<uint4>(tasks, count, slot.memory.get(), is_gather, stream);
    else
      launch<uint2>(tasks, count, slot.memory.get(), is_gather, stream);
  }

  size_t copy_runs(const StagedPlan &plan, const Chunk &chunk, Slot &slot, const Job &job, cudaStream_t stream) {
    std::vector<Piece> pieces;
    for (size_t r = chunk.first_run; r < chunk.last_run; ++r) {
      const Run &run = plan.runs[r];
      const uint64_t staged_at = reinterpret_cast<uintptr_t>(slot.memory.get()) + run.offset;
      if (job.direction == AX_STORE)
        pieces.push_back({staged_at, run.far, run.bytes});
      else
        pieces.push_back({run.far, staged_at, run.bytes});
    }
    pieces = cut_at_borders(pieces);
    // A gathered slot is written by a kernel that is queued, so only far memory can be stable.
    copy_batch(pieces, job, job.direction == AX_LOAD && (job.flags & AX_SOURCE_STABLE), stream);
    return pieces.size();
  }

  // How much of a range one registration pins.
  static uint64_t pinned_bytes(uint64_t at, uint64_t end) { return std::min(end - at, PIN_BYTES - at % PIN_BYTES); }

  // No copy may cross the border of two registrations.
  static std::vector<Piece> cut_at_borders(const std::vector<Piece> &pieces) {
    std::vector<Piece> parts;
    parts.reserve(pieces.size());
    for (const Piece &piece : pieces)
      for (uint64_t done = 0; done < piece.bytes; done += parts.back().bytes) {
        const uint64_t source = piece.source + done, destination = piece.destination + done;
        const uint64_t rest = piece.bytes - done;
        const uint64_t bytes = std::min(pinned_bytes(source, source + rest), pinned_bytes(destination, destination + rest));
        parts.push_back({source, destination, bytes});
      }
    return parts;
  }

  static void copy_singly(const std::vector<Piece> &pieces, cudaStream_t stream) {
    for (const Piece &piece : pieces)
      must(cudaMemcpyAsync(pointer(piece.destination), pointer(piece.source), piece.bytes, cudaMemcpyDefault, stream));
  }

  void copy_batch(const std::vector<Piece> &pieces, const Job &job, bool is_stable, cudaStream_t stream) {
    const bool is_worthwhile = pieces.size() > 1 && has_batch_ && !(job.flags & FAR_IS_PAGEABLE);
    if (!is_worthwhile || !try_batch(pieces, is_stable, stream)) copy_singly(pieces, stream);
  }

#if CUDART_VERSION >= 12080
  // False if the driver does not know the call.
  bool try_batch(const std::vector<Piece> &pieces, bool is_stable, cudaStream_t stream) {
    std::vector<void *> destinations, sources;
    std::vector<size_t> sizes;
    for (const Piece &piece : pieces) {
      destinations.push_back(pointer(piece.destination));
      sources.push_back(pointer(piece.source));
      sizes.push_back(piece.bytes);
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = is_stable ? cudaMemcpySrcAccessOrderAny : cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t error =
        taken(cudaMemcpyBatchAsync(destinations.data(), const_cast<const void **>(sources.data()), sizes.data(),
                                   sizes.size(), &attributes, &first, 1, stream));
#else
    size_t failed = 0;
    const cudaError_t error = taken(cudaMemcpyBatchAsync(destinations.data(), sources.data(), sizes.data(),
                                                         sizes.size(), &attributes, &first, 1, &failed, stream));
#endif
    if (error == cudaErrorCallRequiresNewerDriver || error == cudaErrorNotSupported) {
      has_batch_ = false;
      return false;
    }
    must(error);
    return true;
  }
#else
  bool try_batch(const std::vector<Piece> &, bool, cudaStream_t) { return has_batch_ = false; }
#endif

  static cudaError_t release_pins(uint64_t base, uint64_t end) {
    cudaError_t first = cudaSuccess;
    for (uint64_t at = base; at < end; at += pinned_bytes(at, end)) {
      const cudaError_t error = taken(cudaHostUnregister(pointer(at)));
      if (first == cudaSuccess) first = error;
    }
    return first;
  }

  const int device_;
  const uint64_t slot_bytes_;
  std::mutex spare_mutex_;
  std::vector<TaskBuffer> spare_;
  std::mutex mutex_;  // the lanes
  bool has_batch_ = true;
  Lanes lanes_[2];  // by direction; last: their jobs give their tasks back
};

CudaTicket::~CudaTicket() {
  if (tasks_.host != nullptr) backend_.give_back(std::move(tasks_));
}

Outcome CudaTicket::outcome() {
  Outcome outcome;
  outcome.stats = stats_;
  float elapsed_ms = 0;
  cudaError_t error = taken(cudaEventSynchronize(ended_.get()));
  if (error == cudaSuccess) error = taken(cudaEventElapsedTime(&elapsed_ms, begun_.get(), ended_.get()));
  if (error != cudaSuccess) fail_device(outcome.fault, error);
  outcome.stats.seconds = elapsed_ms / 1e3;
  return outcome;
}

}  // namespace

int32_t find_cuda_device(ax_fault &fault) {
  int count = 0;
  const cudaError_t error = taken(cudaGetDeviceCount(&count));
  if (error == cudaSuccess && count > 0) return AX_OK;
  fail(fault, error == cudaErrorInsufficientDriver ? AX_OLD_DRIVER : AX_NO_DEVICE, AX_FIELD_BACKEND);
  fault.device_error = error;
  return fault.code;
}

std::unique_ptr<Backend> make_cuda_backend(const ax_options &options, ax_fault &fault) {
  try {
    return std::make_unique<CudaBackend>(options);
  } catch (const CudaError &error) {
    fail_device(fault, error.error);
    return nullptr;
  }
}

}  // namespace ax
