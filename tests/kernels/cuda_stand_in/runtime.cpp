// The calls themselves: each checks what it is given as CUDA does, and queues work for the device.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "world.hpp"

namespace stand_in {

namespace {

uint64_t number(const void *memory) { return reinterpret_cast<uintptr_t>(memory); }

// One call: alone in the world until it returns.
class Call {
 public:
  explicit Call(const char *name) : world(World::get()), lock_(world.mutex), error(world.enter(name)) {}
  // What the call returns is also the thread's last error.
  cudaError_t end(cudaError_t given = cudaSuccess) const {
    const cudaError_t code = error != cudaSuccess ? error : given;
    if (code != cudaSuccess) last_error = code;
    return code;
  }
  bool has_failed() const { return error != cudaSuccess; }
  // Which device a thread uses is the host's affair, also when the device is lost.
  bool has_failed_here() const { return has_failed() && error != world.lost; }

  World &world;

 private:
  std::lock_guard<std::recursive_mutex> lock_;

 public:
  const cudaError_t error;
};

bool is_host(Place place) { return place == Place::PAGEABLE || place == Place::PINNED; }

bool suits(Place place, bool is_near_wanted, bool is_any) {
  if (place == Place::NOWHERE) return false;
  return is_any || (place == Place::NEAR) == is_near_wanted;
}

// One copy, as a piece of work. A source that is not read in the stream's order is known to be written only by what the
// host knew of at the call; it may be read at the call, or as late as the copy itself.
std::function<void(const Op &)> copy_of(World &world, void *destination, const void *source, size_t bytes,
                                        bool is_unordered) {
  const Clock at_call = world.host_clock();
  std::vector<char> early;
  if (is_unordered && world.flip()) {
    world.memory.open(true);
    early.assign(static_cast<const char *>(source), static_cast<const char *>(source) + bytes);
    world.memory.open(false);
  }
  return [&world, destination, source, bytes, is_unordered, at_call, early](const Op &op) {
    for (const void *memory : {static_cast<const void *>(destination), source})
      if (world.memory.place_of(number(memory), bytes) == Place::NOWHERE)
        return world.add_fault("a copy touches memory that was released");
    Clock read_clock = is_unordered ? at_call : op.clock;
    read_clock.resize(std::max(read_clock.size(), op.stream + 1));
    world.access(op, number(source), bytes, false, read_clock);
    world.access(op, number(destination), bytes, true, op.clock);
    std::memcpy(destination, early.empty() ? source : early.data(), bytes);
  };
}

cudaError_t release(Call &call, void *memory, Place place, bool is_registered, cudaError_t otherwise) {
  if (memory == nullptr) return call.end();
  const Region *region = call.world.memory.at(number(memory));
  if (region == nullptr || region->base != number(memory) || region->place != place ||
      region->is_registered != is_registered)
    return call.end(otherwise);
  call.world.free_memory(number(memory));
  if (place == Place::PINNED && !is_registered) std::free(memory);
  return call.end();
}

}  // namespace

void reset(const Settings &settings) {
  std::lock_guard<std::recursive_mutex> lock(World::get().mutex);
  World::get().reset(settings);
  current_device = 0;
  last_error = cudaSuccess;
}

void touch(const void *memory, size_t bytes, bool is_write) {
  std::lock_guard<std::recursive_mutex> lock(World::get().mutex);
  World::get().access_by_host(number(memory), bytes, is_write);
}

std::vector<std::string> faults() {
  std::lock_guard<std::recursive_mutex> lock(World::get().mutex);
  return World::get().faults;
}

std::vector<std::string> leftovers() {
  std::lock_guard<std::recursive_mutex> lock(World::get().mutex);
  return World::get().leftovers();
}

void arm(bool is_on) { is_armed = is_on; }
uint64_t calls() { return World::get().calls; }
uint64_t work_done() { return World::get().work; }
uint64_t copies_queued() { return World::get().copies; }
uint64_t longest_chain() { return World::get().longest_chain; }
bool has_failed(const char *name) {
  const char *failed = World::get().failed_call;
  return failed != nullptr && (name == nullptr || std::strcmp(name, failed) == 0);
}
bool has_lost_device() { return World::get().lost != cudaSuccess; }

void check_access(void *destination, const void *source, size_t bytes) {
  World::get().access_by_kernel(number(destination), number(source), bytes);
}

cudaError_t launch(dim3 grid, dim3 block, std::function<void()> run_thread, cudaStream_t handle) {
  const Call call("cudaLaunchKernel");
  if (call.has_failed()) return call.end();
  Stream *stream = call.world.stream(handle);
  if (stream == nullptr || stream->device != current_device) return call.end(cudaErrorInvalidResourceHandle);
  if (grid.x == 0 || block.x == 0 || block.x > 1024) return call.end(cudaErrorInvalidValue);
  std::vector<std::function<void(const Op &)>> pieces;
  for (unsigned b = 0; b < grid.x; ++b)
    pieces.push_back([&world = call.world, grid, block, run_thread, b](const Op &op) {
      world.run_kernel_block(op, [&] {
        gridDim = grid;
        blockDim = block;
        blockIdx = {b, 0, 0};
        for (unsigned t = 0; t < block.x; ++t) {
          threadIdx = {t, 0, 0};
          run_thread();
        }
      });
    });
  call.world.issue(*stream, std::move(pieces));
  return call.end();
}

}  // namespace stand_in

using namespace stand_in;  // NOLINT: the calls below are this file's purpose

cudaError_t cudaGetDeviceCount(int *count) {
  const Call call("cudaGetDeviceCount");
  if (call.has_failed()) return call.end();
  if (call.world.settings().driver_is_old) return call.end(cudaErrorInsufficientDriver);
  *count = call.world.settings().devices;
  return call.end(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
  const Call call("cudaGetDevice");
  if (call.has_failed_here()) return call.end();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const Call call("cudaSetDevice");
  if (call.has_failed_here()) return call.end();
  if (device < 0 || device >= call.world.settings().devices) return call.end(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  const Call call("cudaGetDeviceProperties");
  std::snprintf(properties->name, sizeof(properties->name), "stand-in");
  properties->multiProcessorCount = 4;
  return call.end();
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  const Call call("cudaFuncGetAttributes");
  *attributes = {80};
  return call.end(call.world.settings().has_code ? cudaSuccess : cudaErrorNoKernelImageForDevice);
}

cudaError_t cudaDeviceSynchronize() {
  const Call call("cudaDeviceSynchronize");
  call.world.finish_all(current_device);
  return call.end(call.world.lost);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaMalloc(void **memory, size_t bytes) {
  const Call call("cudaMalloc");
  if (call.has_failed()) return call.end();
  const uint64_t base = call.world.memory.arena(current_device).take(bytes);
  if (base == 0) return call.end(cudaErrorMemoryAllocation);
  call.world.memory.add({base, bytes, Place::NEAR, current_device, false});
  *memory = reinterpret_cast<void *>(static_cast<uintptr_t>(base));
  return call.end();
}

cudaError_t cudaFree(void *memory) {
  Call call("cudaFree");
  return release(call, memory, Place::NEAR, false, cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes) {
  const Call call("cudaMallocHost");
  if (call.has_failed()) return call.end();
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return call.end(cudaErrorMemoryAllocation);
  call.world.memory.add({number(*memory), bytes, Place::PINNED, current_device, false});
  return call.end();
}

cudaError_t cudaFreeHost(void *memory) {
  Call call("cudaFreeHost");
  return release(call, memory, Place::PINNED, false, cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
  const Call call("cudaHostRegister");
  if (call.has_failed()) return call.end();
  if (bytes == 0 || bytes > call.world.settings().most_registered) return call.end(cudaErrorInvalidValue);
  // Drivers lock whole pages.
  const uint64_t begin = number(memory) / 4096 * 4096, end = (number(memory) + bytes + 4095) / 4096 * 4096;
  if (call.world.memory.overlaps_pinned(begin, end - begin)) return call.end(cudaErrorHostMemoryAlreadyRegistered);
  call.world.memory.add({number(memory), bytes, Place::PINNED, current_device, true});
  return call.end();
}

cudaError_t cudaHostUnregister(void *memory) {
  Call call("cudaHostUnregister");
  return release(call, memory, Place::PINNED, true, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory) {
  const Call call("cudaPointerGetAttributes");
  if (call.has_failed()) return call.end();
  const Region *region = call.world.memory.at(number(memory));
  attributes->type = region == nullptr                ? cudaMemoryTypeUnregistered
                     : region->place == Place::NEAR ? cudaMemoryTypeDevice
                                                    : cudaMemoryTypeHost;
  attributes->device = region == nullptr ? -2 : region->device;
  return call.end();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  const Call call("cudaStreamCreateWithFlags");
  if (!call.has_failed()) *stream = call.world.add_stream(flags != cudaStreamNonBlocking);
  return call.end();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Call call("cudaStreamDestroy");
  return call.end(call.world.remove_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Call call("cudaStreamSynchronize");
  Stream *stream = call.world.stream(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  call.world.finish(stream->last);
  return call.end(call.world.lost);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t event_handle, unsigned) {
  const Call call("cudaStreamWaitEvent");
  if (call.has_failed()) return call.end();
  Stream *stream = call.world.stream(stream_handle);
  const Event *event = call.world.event(event_handle);
  if (stream == nullptr || event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (event->op != nullptr) call.world.issue(*stream, {}, event->op);
  return call.end();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  const Call call("cudaEventCreateWithFlags");
  if (!call.has_failed()) *event = call.world.add_event(flags != cudaEventDisableTiming);
  return call.end();
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Call call("cudaEventDestroy");
  return call.end(call.world.remove_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t stream_handle) {
  const Call call("cudaEventRecord");
  if (call.has_failed()) return call.end();
  Stream *stream = call.world.stream(stream_handle);
  Event *event = call.world.event(event_handle);
  if (stream == nullptr || event == nullptr || stream->device != event->device)
    return call.end(cudaErrorInvalidResourceHandle);
  event->op = call.world.issue(*stream, {});
  return call.end();
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const Call call("cudaEventQuery");
  if (call.has_failed()) return call.end();
  const Event *event = call.world.event(handle);
  if (event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (event->op == nullptr) return call.end();
  // Whoever asks again and again must see an end.
  if (!event->op->is_done && !call.world.settings().is_lazy && call.world.flip(8)) call.world.finish(event->op);
  if (call.world.lost != cudaSuccess) return call.end(call.world.lost);
  if (!event->op->is_done) return call.end(cudaErrorNotReady);
  call.world.learn(*event->op);
  return call.end();
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const Call call("cudaEventSynchronize");
  const Event *event = call.world.event(handle);
  if (event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  call.world.finish(event->op);
  return call.end(call.world.lost);
}

cudaError_t cudaEventElapsedTime(float *elapsed_ms, cudaEvent_t begun, cudaEvent_t ended) {
  const Call call("cudaEventElapsedTime");
  if (call.has_failed()) return call.end();
  const Event *first = call.world.event(begun), *second = call.world.event(ended);
  for (const Event *one : {first, second}) {
    if (one == nullptr || !one->is_timed || one->op == nullptr) return call.end(cudaErrorInvalidResourceHandle);
    if (!one->op->is_done) return call.end(cudaErrorNotReady);
  }
  *elapsed_ms = static_cast<float>(second->op->done_at_ms - first->op->done_at_ms);
  return call.end();
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
  const Call call("cudaMemset");
  if (call.has_failed()) return call.end();
  const Place place = call.world.memory.place_of(number(memory), bytes);
  if (place != Place::NEAR && place != Place::PINNED) return call.end(cudaErrorInvalidValue);
  call.world.issue(*call.world.stream(nullptr), {[&world = call.world, memory, value, bytes](const Op &op) {
                     world.access(op, number(memory), bytes, true, op.clock);
                     std::memset(memory, value, bytes);
                   }});
  return call.end();
}

cudaError_t cudaMemcpy(void *destination, const void *source, size_t bytes, cudaMemcpyKind kind) {
  const Call call("cudaMemcpy");
  if (call.has_failed()) return call.end();
  if (const cudaError_t error = cudaMemcpyAsync(destination, source, bytes, kind, nullptr)) return error;
  call.world.finish(call.world.stream(nullptr)->last);
  return call.end(call.world.lost);
}

cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  const Call call("cudaMemcpyAsync");
  if (call.has_failed()) return call.end();
  Stream *stream = call.world.stream(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  const Place to = call.world.memory.place_of(number(destination), bytes);
  const Place from = call.world.memory.place_of(number(source), bytes);
  const bool is_any = kind == cudaMemcpyDefault;
  if (!suits(to, kind == cudaMemcpyHostToDevice, is_any) || !suits(from, kind == cudaMemcpyDeviceToHost, is_any))
    return call.end(cudaErrorInvalidValue);
  const OpRef op = call.world.issue(*stream, {copy_of(call.world, destination, source, bytes, false)});
  // Host memory that is not pinned may be copied before the call returns, or later.
  if ((to == Place::PAGEABLE || from == Place::PAGEABLE || (is_host(to) && is_host(from))) && call.world.flip())
    call.world.finish(op);
  return call.end(call.world.lost);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *destinations, const void *const *sources, const size_t *sizes, size_t count,
                                 cudaMemcpyAttributes *attributes, size_t *first_of, size_t attribute_count,
                                 cudaStream_t handle) {
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void **destinations, void **sources, size_t *sizes, size_t count,
                                 cudaMemcpyAttributes *attributes, size_t *first_of, size_t attribute_count,
                                 size_t *failed, cudaStream_t handle) {
  *failed = SIZE_MAX;
#endif
#if CUDART_VERSION >= 12080
  const Call call("cudaMemcpyBatchAsync");
  if (call.has_failed()) return call.end();
  World &world = call.world;
  if (!world.settings().has_batch) return call.end(world.settings().batch_error);
  Stream *stream = world.stream(handle);
  if (handle == nullptr || stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (count == 0 || attribute_count != 1 || first_of[0] != 0) return call.end(cudaErrorInvalidValue);
  const bool is_unordered = attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderAny;
  std::vector<std::function<void(const Op &)>> pieces;
  for (size_t i = 0; i < count; ++i) {
    const Place to = world.memory.place_of(number(destinations[i]), sizes[i]);
    const Place from = world.memory.place_of(number(sources[i]), sizes[i]);
    const bool is_pageable = to == Place::PAGEABLE || from == Place::PAGEABLE;
    if (to == Place::NOWHERE || from == Place::NOWHERE || (is_pageable && !world.settings().batch_takes_pageable))
      return call.end(cudaErrorInvalidValue);
    pieces.push_back(copy_of(world, destinations[i], sources[i], sizes[i], is_unordered));
  }
  world.issue(*stream, std::move(pieces));
  return call.end();
}
#endif
