// The CUDA back end: the copy engines move everything between the memories; kernels only gather and scatter in near memory.
//
// Each direction has two streams, one for copies and one for kernels, and a ring of staging slots in near memory. A job
// is queued whole by the call that starts it and never waits on the host; events order what is on the two streams.
#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>

#include "backend.hpp"
#include "gather.hpp"
#include "plan.hpp"

namespace ax {

namespace {

// Drivers limit how much one registration may pin.
constexpr uint64_t PIN_BYTES = UINT64_C(16) << 30;
// A few blocks are faster than the bus; the rest of the device is for decoding.
constexpr uint32_t MOST_KERNEL_BLOCKS = 24;
constexpr uint32_t KERNEL_THREADS = 256;
constexpr size_t LEAST_TASKS = 4096;
// Our own flag beside the caller's: far memory that is not pinned, which the batch call may reject.
constexpr uint32_t FAR_IS_PAGEABLE = 1u << 31;

struct CudaError {
  cudaError_t error;
};

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next checked call, perhaps not ours, would see it
  throw CudaError{error};
}

int32_t fail_device(ax_fault &fault, cudaError_t error) {
  fail(fault, error == cudaErrorMemoryAllocation ? AX_MEMORY : AX_DEVICE, AX_FIELD_NONE);
  fault.device_error = error;
  return fault.code;
}

// The thread's device belongs to the caller: borrowed for one call.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    must(cudaGetDevice(&before_));
    must(cudaSetDevice(device));
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;

 private:
  int before_ = 0;
};

class Event {
 public:
  explicit Event(bool is_timed) {
    must(cudaEventCreateWithFlags(&event_, is_timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { must(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) { must(cudaStreamWaitEvent(stream, event_, 0)); }

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
    const uint32_t words = static_cast<uint32_t>(task.bytes / sizeof(Word));
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
      if (IS_GATHER)
        staged[i] = near[i];
      else
        near[i] = staged[i];
    }
  }
}

template <typename Word>
void launch(const Task *tasks, uint32_t count, char *slot, bool is_gather, cudaStream_t stream) {
  const uint32_t blocks = std::min(count, MOST_KERNEL_BLOCKS);
  if (is_gather)
    move_tasks<Word, true><<<blocks, KERNEL_THREADS, 0, stream>>>(tasks, count, slot);
  else
    move_tasks<Word, false><<<blocks, KERNEL_THREADS, 0, stream>>>(tasks, count, slot);
  must(cudaGetLastError());
}

// Tasks in the kernels' memory, and their source in pinned memory.
struct TaskBuffer {
  size_t capacity = 0;
  Task *host = nullptr;
  Task *device = nullptr;

  void free_all() {
    cudaFreeHost(host);
    cudaFree(device);
  }
};

struct Slot {
  explicit Slot(uint64_t bytes) : ready(false), is_free(false) { must(cudaMalloc(&memory, bytes)); }
  ~Slot() { cudaFree(memory); }
  void *memory = nullptr;
  Event ready;
  Event is_free;
};

class CudaBackend;

class CudaTicket : public Ticket {
 public:
  explicit CudaTicket(CudaBackend &backend) : backend_(backend), gate_(false), begun_(true), ended_(true) {}
  ~CudaTicket() override;

  bool is_done() override {
    if (cudaEventQuery(ended_.get()) != cudaErrorNotReady) return true;
    cudaGetLastError();  // else the check after this thread's next kernel would report it as a failure
    return false;
  }
  void wait() override { cudaEventSynchronize(ended_.get()); }
  Outcome outcome() override;

 private:
  friend class CudaBackend;
  CudaBackend &backend_;
  Event gate_;
  Event begun_;
  Event ended_;
  ax_stats stats_{};
  TaskBuffer tasks_;
};

// One direction's streams and ring.
struct Lane {
  explicit Lane(const ax_options &options) {
    must(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&kernels, cudaStreamNonBlocking));
    for (uint32_t i = 0; i < options.slots; ++i) ring.push_back(std::make_unique<Slot>(options.slot_bytes));
  }
  ~Lane() {
    cudaStreamDestroy(copies);
    cudaStreamDestroy(kernels);
  }
  cudaStream_t copies = nullptr;
  cudaStream_t kernels = nullptr;
  std::vector<std::unique_ptr<Slot>> ring;
  size_t next_slot = 0;
  std::shared_ptr<CudaTicket> last;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const ax_options &options)
      : device_(static_cast<int>(options.device)), slot_bytes_(options.slot_bytes) {
    DeviceScope scope(device_);
    for (std::unique_ptr<Lane> &lane : lanes_) lane = std::make_unique<Lane>(options);
  }

  ~CudaBackend() override {
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    for (std::unique_ptr<Lane> &lane : lanes_) {
      lane->last.reset();
      cudaStreamSynchronize(lane->copies);
      cudaStreamSynchronize(lane->kernels);
      lane.reset();
    }
    for (TaskBuffer &buffer : spare_) buffer.free_all();
    cudaSetDevice(before);
  }

  std::shared_ptr<Ticket> start(Job job, ax_fault &fault) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Lane &lane = *lanes_[job.direction];
    try {
      DeviceScope scope(device_);
      if (check_places(job, fault)) return nullptr;
      auto ticket = std::make_shared<CudaTicket>(*this);
      try {
        enqueue(job, lane, *ticket);
      } catch (...) {
        // Queued work already uses the ticket's buffers.
        cudaStreamSynchronize(lane.copies);
        cudaStreamSynchronize(lane.kernels);
        throw;
      }
      lane.last = ticket;
      return ticket;
    } catch (const CudaError &error) {
      fail_device(fault, error.error);
      return nullptr;
    }
  }

  uint64_t slot_bytes() const override { return slot_bytes_; }

  void *allocate(uint64_t bytes, bool is_near) override {
    void *memory = nullptr;
    try {
      DeviceScope scope(device_);
      must(is_near ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes));
      must(cudaMemset(memory, 1, bytes));
      must(cudaDeviceSynchronize());
      return memory;
    } catch (const CudaError &) {
      release(memory, is_near);
      return nullptr;
    }
  }

  void release(void *memory, bool is_near) override { is_near ? cudaFree(memory) : cudaFreeHost(memory); }

  int32_t pin(uint64_t base, uint64_t bytes, ax_fault &fault) override {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t done = 0;
    try {
      DeviceScope scope(device_);
      for (; done < bytes; done += PIN_BYTES) {
        must(cudaHostRegister(pointer(base + done), std::min(PIN_BYTES, bytes - done), cudaHostRegisterPortable));
        if (done > 0) edges_.insert(std::upper_bound(edges_.begin(), edges_.end(), base + done), base + done);
      }
      return AX_OK;
    } catch (const CudaError &error) {
      release_pins(base, done);
      return fail_device(fault, error.error);
    }
  }

  int32_t unpin(uint64_t base, uint64_t bytes, ax_fault &fault) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const cudaError_t error = release_pins(base, bytes);
    return error == cudaSuccess ? AX_OK : fail_device(fault, error);
  }

  // A ticket's tasks are returned for reuse.
  void give_back(const TaskBuffer &buffer) {
    std::lock_guard<std::mutex> lock(spare_mutex_);
    spare_.push_back(buffer);
  }

 private:
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

  void enqueue(const Job &job, Lane &lane, CudaTicket &ticket) {
    if (job.flags & AX_AFTER_STREAM) {
      ticket.gate_.record(reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(job.after_stream)));
      ticket.gate_.hold(lane.copies);
      ticket.gate_.hold(lane.kernels);
    }
    if (lane.last != nullptr) {
      lane.last->ended_.hold(lane.copies);
      lane.last->ended_.hold(lane.kernels);
    }
    ticket.stats_.strategy = job.strategy;
    ticket.stats_.pages = job.sources.size() * job.pairs.size();
    ticket.stats_.bytes = bytes_of(job);
    if (job.strategy == AX_STAGED)
      enqueue_staged(job, lane, ticket);
    else
      enqueue_direct(job, lane, ticket);
  }

  void enqueue_direct(const Job &job, Lane &lane, CudaTicket &ticket) {
    const std::vector<Piece> pieces = cut_at_edges(job.strategy == AX_PER_PAGE ? per_page(job) : coalesced(job));
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
    if (tasks.empty()) return;
    ticket.tasks_ = take_buffer(tasks.size());
    std::copy(tasks.begin(), tasks.end(), ticket.tasks_.host);
    must(cudaMemcpyAsync(ticket.tasks_.device, ticket.tasks_.host, tasks.size() * sizeof(Task), cudaMemcpyHostToDevice,
                         stream));
  }

  TaskBuffer take_buffer(size_t count) {
    std::lock_guard<std::mutex> lock(spare_mutex_);
    for (size_t i = 0; i < spare_.size(); ++i) {
      if (spare_[i].capacity < count) continue;
      const TaskBuffer found = spare_[i];
      spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    TaskBuffer made;
    made.capacity = LEAST_TASKS;
    while (made.capacity < count) made.capacity *= 2;
    must(cudaMallocHost(reinterpret_cast<void **>(&made.host), made.capacity * sizeof(Task)));
    const cudaError_t error = cudaMalloc(reinterpret_cast<void **>(&made.device), made.capacity * sizeof(Task));
    if (error != cudaSuccess) cudaFreeHost(made.host);
    must(error);
    return made;
  }

  static void run_kernel(const Chunk &chunk, CudaTicket &ticket, Slot &slot, bool is_gather, bool is_wide,
                         cudaStream_t stream) {
    const Task *tasks = ticket.tasks_.device + chunk.first_task;
    const auto count = static_cast<uint32_t>(chunk.last_task - chunk.first_task);
    if (is_wide)
      launch<uint4>(tasks, count, static_cast<char *>(slot.memory), is_gather, stream);
    else
      launch<uint2>(tasks, count, static_cast<char *>(slot.memory), is_gather, stream);
  }

  size_t copy_runs(const StagedPlan &plan, const Chunk &chunk, Slot &slot, const Job &job, cudaStream_t stream) {
    std::vector<Piece> pieces;
    for (size_t r = chunk.first_run; r < chunk.last_run; ++r) {
      const Run &run = plan.runs[r];
      const uint64_t staged_at = reinterpret_cast<uintptr_t>(slot.memory) + run.offset;
      if (job.direction == AX_STORE)
        pieces.push_back({staged_at, run.far, run.bytes});
      else
        pieces.push_back({run.far, staged_at, run.bytes});
    }
    pieces = cut_at_edges(std::move(pieces));
    // A gathered slot is written by a kernel that is queued, so only far memory can be stable.
    copy_batch(pieces, job, job.direction == AX_LOAD && (job.flags & AX_SOURCE_STABLE), stream);
    return pieces.size();
  }

  // No copy may cross the border of two registrations.
  std::vector<Piece> cut_at_edges(std::vector<Piece> pieces) const {
    if (edges_.empty()) return pieces;
    std::vector<Piece> parts;
    for (Piece piece : pieces) {
      while (const uint64_t part = bytes_to_edge(piece)) {
        parts.push_back({piece.source, piece.destination, part});
        piece = {piece.source + part, piece.destination + part, piece.bytes - part};
      }
      parts.push_back(piece);
    }
    return parts;
  }

  // How far the first edge inside a piece is from its beginning; 0 if there is none.
  uint64_t bytes_to_edge(const Piece &piece) const {
    uint64_t nearest = 0;
    for (const uint64_t begin : {piece.source, piece.destination}) {
      const auto edge = std::upper_bound(edges_.begin(), edges_.end(), begin);
      if (edge == edges_.end() || *edge - begin >= piece.bytes) continue;
      nearest = nearest == 0 ? *edge - begin : std::min(nearest, *edge - begin);
    }
    return nearest;
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
        cudaMemcpyBatchAsync(destinations.data(), const_cast<const void **>(sources.data()), sizes.data(), sizes.size(),
                             &attributes, &first, 1, stream);
#else
    size_t failed = 0;
    const cudaError_t error = cudaMemcpyBatchAsync(destinations.data(), sources.data(), sizes.data(), sizes.size(),
                                                   &attributes, &first, 1, &failed, stream);
#endif
    if (error == cudaErrorCallRequiresNewerDriver || error == cudaErrorNotSupported) {
      cudaGetLastError();
      has_batch_ = false;
      return false;
    }
    must(error);
    return true;
  }
#else
  bool try_batch(const std::vector<Piece> &, bool, cudaStream_t) { return has_batch_ = false; }
#endif

  cudaError_t release_pins(uint64_t base, uint64_t bytes) {
    cudaError_t first = cudaSuccess;
    for (uint64_t done = 0; done < bytes; done += PIN_BYTES) {
      const cudaError_t error = cudaHostUnregister(pointer(base + done));
      if (error != cudaSuccess) cudaGetLastError();
      if (first == cudaSuccess) first = error;
      const auto edge = std::find(edges_.begin(), edges_.end(), base + done);
      if (edge != edges_.end()) edges_.erase(edge);
    }
    return first;
  }

  const int device_;
  const uint64_t slot_bytes_;
  std::mutex mutex_;
  std::unique_ptr<Lane> lanes_[2];
  std::vector<uint64_t> edges_;  // borders between adjacent registrations, ascending
  bool has_batch_ = true;
  std::mutex spare_mutex_;
  std::vector<TaskBuffer> spare_;
};

CudaTicket::~CudaTicket() {
  cudaEventSynchronize(ended_.get());
  if (tasks_.host != nullptr) backend_.give_back(tasks_);
}

Outcome CudaTicket::outcome() {
  Outcome outcome;
  outcome.stats = stats_;
  float elapsed_ms = 0;
  cudaError_t error = cudaEventQuery(ended_.get());
  if (error == cudaSuccess) error = cudaEventElapsedTime(&elapsed_ms, begun_.get(), ended_.get());
  if (error != cudaSuccess) {
    cudaGetLastError();
    fail_device(outcome.fault, error);
  }
  outcome.stats.seconds = elapsed_ms / 1e3;
  return outcome;
}

}  // namespace

bool has_cuda_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && count > 0;
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
