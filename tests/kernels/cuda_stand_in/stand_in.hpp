// What a test controls of the stand-in for CUDA, and what it reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace stand_in {

struct Settings {
  uint64_t seed = 0;  // of every choice that CUDA leaves open
  int devices = 2;
  bool has_batch = true;            // else the driver is too old for cudaMemcpyBatchAsync
  cudaError_t batch_error = cudaErrorCallRequiresNewerDriver;  // what such a driver says
  bool batch_takes_pageable = false;
  bool driver_is_old = false;       // older than the runtime
  bool has_code = true;             // for the devices' compute capability
  bool is_lazy = false;             // the device does only what a wait needs
  bool kernels_stay_near = true;    // a kernel that touches host memory is a fault
  uint64_t most_registered = UINT64_C(16) << 30;  // of one registration
  uint64_t fail_at = 0;             // this call fails, counted from 1
  cudaError_t fail_with = cudaErrorInvalidValue;
  uint64_t lose_at = 0;             // the device is lost at this piece of its work, counted from 1
  cudaError_t lose_with = cudaErrorECCUncorrectable;
};

// Begin anew: no streams, no memory, no faults.
void reset(const Settings &settings);

// The host reads or writes memory itself. It is a fault if work of the device that is not ordered with it does too.
void touch(const void *memory, size_t bytes, bool is_write);

// What no program may do, in words. Each is also an error of some call, or undefined.
std::vector<std::string> faults();

// What was made and not released: streams, events, memory, registrations.
std::vector<std::string> leftovers();

// Whether this thread's calls are those of the program under test: only they are counted and fail.
void arm(bool is_armed);
uint64_t calls();               // armed calls so far
uint64_t work_done();           // pieces of work so far
uint64_t copies_queued();       // copies and blocks of kernels so far
uint64_t longest_chain();       // the most of them of which each must wait for the one before
bool has_failed(const char *name);  // whether `fail_at` has hit this call; null: any
bool has_lost_device();

}  // namespace stand_in
