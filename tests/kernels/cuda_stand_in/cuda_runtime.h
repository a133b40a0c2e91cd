// A stand-in for the CUDA runtime, for tests: the calls that csrc/ makes, with the meaning that CUDA's documentation gives
// them and nothing more. No card is needed, and none is found. `stand_in.hpp` says what a test controls.
//
// Kernels are compiled for the host. A word that a kernel copies is of a type below, whose assignment looks up both
// addresses; so a kernel runs its own index arithmetic, and each access of memory is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#ifndef CUDART_VERSION
#define CUDART_VERSION 13000
#endif

#define __global__

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorCallRequiresNewerDriver = 36,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2 };
enum cudaMemcpySrcAccessOrder { cudaMemcpySrcAccessOrderStream = 1, cudaMemcpySrcAccessOrderAny = 3 };
enum cudaMemcpyFlags { cudaMemcpyFlagDefault = 0, cudaMemcpyFlagPreferOverlapWithCompute = 1 };

constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;
constexpr unsigned cudaHostRegisterPortable = 1;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void *devicePointer;
  void *hostPointer;
};

struct cudaMemcpyAttributes {
  cudaMemcpySrcAccessOrder srcAccessOrder;
  unsigned flags;
};

struct cudaFuncAttributes {
  int binaryVersion;
};

struct cudaDeviceProp {
  char name[256];
  int multiProcessorCount;
};

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline thread_local uint3 blockIdx{}, threadIdx{};
inline thread_local dim3 blockDim, gridDim;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *elapsed_ms, cudaEvent_t begun, cudaEvent_t ended);

cudaError_t cudaMemset(void *memory, int value, size_t bytes);
cudaError_t cudaMemcpy(void *destination, const void *source, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *destinations, const void *const *sources, const size_t *sizes, size_t count,
                                 cudaMemcpyAttributes *attributes, size_t *first_of, size_t attribute_count,
                                 cudaStream_t stream);
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void **destinations, void **sources, size_t *sizes, size_t count,
                                 cudaMemcpyAttributes *attributes, size_t *first_of, size_t attribute_count,
                                 size_t *failed, cudaStream_t stream);
#endif

namespace stand_in {

// A word is copied by a kernel: both addresses are looked up. Throws to end the kernel.
void check_access(void *destination, const void *source, size_t bytes);
cudaError_t launch(dim3 grid, dim3 block, std::function<void()> run_thread, cudaStream_t stream);

template <typename... P, size_t... I>
std::function<void()> bind(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {
  return [kernel, values = std::make_tuple(*static_cast<P *>(arguments[I])...)] { std::apply(kernel, values); };
}

// A word of memory as kernels copy it.
template <size_t N>
struct alignas(4 * N) Word {
  unsigned parts[N];
  Word &operator=(const Word &other) {
    check_access(this, &other, sizeof(*this));
    for (size_t i = 0; i < N; ++i) parts[i] = other.parts[i];
    return *this;
  }
};

}  // namespace stand_in

using uint2 = stand_in::Word<2>;
using uint4 = stand_in::Word<4>;

template <typename... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **arguments, size_t, cudaStream_t stream) {
  return stand_in::launch(grid, block, stand_in::bind(kernel, arguments, std::index_sequence_for<P...>()), stream);
}
