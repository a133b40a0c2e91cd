// Scenes over the stand-in for CUDA: which jobs wait for which, and why no context can be opened.
//
// The device of these scenes is lazy: it does only what a wait needs. So a job that is not done after a wait for a later one
// is a job that the later one does not wait for.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda_play.hpp"

namespace {

constexpr uint64_t OVERLAP_BLOCKS = 64, OVERLAP_BLOCK_BYTES = 4096;

ax_options overlap_options() {
  ax_options options{};
  options.struct_bytes = sizeof(options);
  options.backend = AX_CUDA;
  options.threads = 1;
  options.slot_bytes = OVERLAP_BLOCK_BYTES;
  options.slots = 2;
  return options;
}

// A context, and two memories of one plane.
class Overlap {
 public:
  explicit Overlap(stand_in::Settings settings) {
    settings.is_lazy = true;
    stand_in::reset(settings);
    const ax_options options = overlap_options();
    check(ax_open(&options, &context_, nullptr) == AX_OK, "open");
    constexpr uint64_t bytes = OVERLAP_BLOCKS * OVERLAP_BLOCK_BYTES;
    must(cudaMalloc(&near_, bytes));
    must(cudaMallocHost(&far_, bytes));
    must(cudaMemset(near_, 1, bytes));
    must(cudaMemset(far_, 2, bytes));
    must(cudaDeviceSynchronize());
  }

  ~Overlap() {
    ax_close(context_);
    cudaFree(near_);
    cudaFreeHost(far_);
  }

  // Blocks of near memory from `near`, and as many of far memory from `far`.
  uint64_t submit(uint32_t direction, uint32_t strategy, int64_t near, int64_t far, int64_t count) {
    const ax_plane near_plane{number(near_), OVERLAP_BLOCK_BYTES, OVERLAP_BLOCK_BYTES, OVERLAP_BLOCKS};
    const ax_plane far_plane{number(far_), OVERLAP_BLOCK_BYTES, OVERLAP_BLOCK_BYTES, OVERLAP_BLOCKS};
    std::vector<int64_t> pairs;
    for (int64_t i = 0; i < count; ++i) {
      pairs.push_back(direction == AX_STORE ? near + i : far + i);
      pairs.push_back(direction == AX_STORE ? far + i : near + i);
    }
    ax_job job{};
    job.struct_bytes = sizeof(job);
    job.strategy = strategy;
    job.direction = direction;
    job.sources = direction == AX_STORE ? &near_plane : &far_plane;
    job.destinations = direction == AX_STORE ? &far_plane : &near_plane;
    job.plane_count = 1;
    job.pairs = pairs.data();
    job.pair_count = static_cast<uint64_t>(count);
    uint64_t handle = 0;
    check(ax_submit(context_, &job, &handle, nullptr) == AX_OK, "submit");
    return handle;
  }

  void wait(uint64_t handle) { check(ax_wait(context_, handle, stats(), nullptr) == AX_OK, "wait"); }

  // Whether a job has not ended; an end is reported.
  bool is_under_way(uint64_t handle) { return ax_poll(context_, handle, stats(), nullptr) == AX_PENDING; }

 private:
  ax_stats *stats() {
    stats_.struct_bytes = sizeof(stats_);
    return &stats_;
  }

  ax_context *context_ = nullptr;
  void *near_ = nullptr, *far_ = nullptr;
  ax_stats stats_{};
};

// A large job of blocks 0 to 47 in both memories, and a small one behind it.
struct Pair {
  const char *what;
  uint32_t first, second;  // directions
  int64_t near, far;       // the small one's block
  bool waits;
};

constexpr Pair PAIRS[] = {
    {"a load of other blocks", AX_LOAD, AX_LOAD, 50, 50, false},
    {"a load of a block that is only read", AX_LOAD, AX_LOAD, 50, 47, false},
    {"a load into a block that is written", AX_LOAD, AX_LOAD, 47, 50, true},
    {"a store of other blocks", AX_LOAD, AX_STORE, 50, 50, false},
    {"a store of a block that is written", AX_LOAD, AX_STORE, 47, 50, true},
    {"a store into a block that is read", AX_LOAD, AX_STORE, 50, 47, true},
    {"a second store of other blocks", AX_STORE, AX_STORE, 50, 50, false},
    {"a store of a block that is only read", AX_STORE, AX_STORE, 47, 50, false},
    {"a store into a block that is written", AX_STORE, AX_STORE, 50, 47, true},
};

uint64_t play_overlap(const stand_in::Settings &settings) {
  uint64_t jobs = 0;
  for (const Pair &pair : PAIRS)
    for (const uint32_t large : {AX_PER_PAGE, AX_COALESCED, AX_STAGED})
      for (const uint32_t small : {AX_PER_PAGE, AX_COALESCED, AX_STAGED}) {
        Overlap scene(settings);
        const uint64_t first = scene.submit(pair.first, large, 0, 0, 48);
        scene.wait(scene.submit(pair.second, small, pair.near, pair.far, 1));
        const bool has_waited = !scene.is_under_way(first);
        if (has_waited != pair.waits) throw Wrong{std::string(pair.what) + (pair.waits ? " does not wait" : " waits")};
        jobs += 2;
      }
  // Jobs of a slot each: the gather of one overlaps the copy of another.
  Overlap scene(settings);
  const uint64_t before = stand_in::copies_queued();
  for (int64_t i = 0; i < 16; ++i) scene.submit(AX_STORE, AX_STAGED, i, i, 1);
  const uint64_t copies = stand_in::copies_queued() - before, chain = stand_in::longest_chain();
  std::printf("16 staged stores of a block: %llu copies and kernels, %llu one after the other\n",
              static_cast<unsigned long long>(copies), static_cast<unsigned long long>(chain));
  check(2 * chain < copies, "small jobs overlap");
  return jobs + 16;
}

uint64_t play_reasons(stand_in::Settings settings) {
  const auto opened = [](const stand_in::Settings &given) {
    stand_in::reset(given);
    const ax_options options = overlap_options();
    ax_context *context = nullptr;
    ax_fault fault{};
    ax_open(&options, &context, &fault);
    check((fault.code == AX_OK) == (context != nullptr), "a context, or a fault");
    ax_close(context);
    check(cudaPeekAtLastError() == cudaSuccess, "an error is left behind");
    return fault;
  };
  check(opened(settings).code == AX_OK, "open");
  stand_in::Settings changed = settings;
  changed.devices = 0;
  const ax_fault no_device = opened(changed);
  check(no_device.code == AX_NO_DEVICE && no_device.device_error == cudaErrorNoDevice, "no device");
  changed = settings;
  changed.driver_is_old = true;
  const ax_fault old_driver = opened(changed);
  check(old_driver.code == AX_OLD_DRIVER && old_driver.device_error == cudaErrorInsufficientDriver, "an old driver");
  changed = settings;
  changed.has_code = false;
  const ax_fault no_code = opened(changed);
  check(no_code.code == AX_CAPABILITY && no_code.device_error == cudaErrorNoKernelImageForDevice, "no code");
  return 0;
}

}  // namespace
