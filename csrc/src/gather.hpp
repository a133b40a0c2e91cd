// The reference of the gather and scatter kernels, in plain C++: the CPU back end runs it, and a kernel must equal it.
#pragma once

#include <cstdint>
#include <cstring>

#include "plan.hpp"

namespace ax {

inline void *pointer(uint64_t address) { return reinterpret_cast<void *>(static_cast<uintptr_t>(address)); }

// Near memory to slot.
inline void gather_reference(const Task *tasks, size_t count, uint64_t slot) {
  for (size_t i = 0; i < count; ++i) std::memcpy(pointer(slot + tasks[i].offset), pointer(tasks[i].near), tasks[i].bytes);
}

// Slot to near memory.
inline void scatter_reference(const Task *tasks, size_t count, uint64_t slot) {
  for (size_t i = 0; i < count; ++i) std::memcpy(pointer(tasks[i].near), pointer(slot + tasks[i].offset), tasks[i].bytes);
}

}  // namespace ax
