// A program that drives the library from several threads with random jobs, for runs under sanitizers.
// It ends with 0 if every byte is where a plain model puts it and every broken job is refused.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "autellix_swap.h"

namespace {

int failures = 0;  // of the main thread's checks; workers count their own

bool check(bool is_right, const char *what) {
  if (!is_right) std::fprintf(stderr, "wrong: %s\n", what);
  return is_right;
}

struct Side {
  std::vector<uint64_t> words;
  std::vector<ax_plane> planes;

  // Layers together or apart, in memory of exactly the size that they need, so that a sanitizer sees one byte beyond.
  Side(size_t layers, uint64_t block_bytes, uint64_t blocks, bool is_together, uint64_t fill)
      : words(layers * block_bytes * blocks / 8) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = fill + i;
    const auto base = reinterpret_cast<uintptr_t>(words.data());
    for (size_t l = 0; l < layers; ++l) {
      if (is_together)
        planes.push_back({base + l * block_bytes, block_bytes, layers * block_bytes, blocks});
      else
        planes.push_back({base + l * block_bytes * blocks, block_bytes, block_bytes, blocks});
    }
  }

  const uint64_t *page(size_t layer, uint64_t block) const {
    return reinterpret_cast<const uint64_t *>(planes[layer].base + block * planes[layer].stride_bytes);
  }
};

struct Work {
  Side source, destination;
  std::vector<int64_t> pairs;
  ax_job job{};

  explicit Work(std::mt19937_64 &random)
      : source(1 + random() % 3, 8 * (1 + random() % 900), 1 + random() % 20, random() % 2, random()),
        destination(source.planes.size(), source.planes[0].block_bytes, 1 + random() % 20, random() % 2, 0) {
    const uint64_t step = 1 + random() % 2;
    for (uint64_t block = 0; block < destination.planes[0].blocks; block += step) {
      pairs.push_back(static_cast<int64_t>((block + random() % 2) % source.planes[0].blocks));
      pairs.push_back(static_cast<int64_t>(block));
    }
    job.struct_bytes = sizeof(ax_job);
    job.strategy = static_cast<uint32_t>(random() % 4);
    job.direction = static_cast<uint32_t>(random() % 2);
    job.sources = source.planes.data();
    job.destinations = destination.planes.data();
    job.plane_count = source.planes.size();
    job.pairs = pairs.data();
    job.pair_count = pairs.size() / 2;
  }

  bool is_done_right(const ax_stats &stats) const {
    for (size_t layer = 0; layer < source.planes.size(); ++layer)
      for (size_t k = 0; k < pairs.size(); k += 2)
        if (std::memcmp(source.page(layer, static_cast<uint64_t>(pairs[k])),
                        destination.page(layer, static_cast<uint64_t>(pairs[k + 1])), source.planes[layer].block_bytes))
          return check(false, "a page");
    return check(stats.pages == source.planes.size() * pairs.size() / 2, "the count of pages");
  }
};

int run_jobs(ax_context *context, uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    Work first(random), second(random);
    ax_stats stats{};
    stats.struct_bytes = sizeof(stats);
    ax_fault fault{};
    uint64_t one = 0, two = 0;
    wrong += !check(ax_submit(context, &first.job, &one, &fault) == AX_OK, "submit");
    wrong += !check(ax_submit(context, &second.job, &two, &fault) == AX_OK, "submit again");
    wrong += !check(ax_wait(context, two, &stats, &fault) == AX_OK, "wait");
    wrong += !second.is_done_right(stats);
    // Jobs run in order, so the first is done.
    wrong += !check(ax_poll(context, one, &stats, &fault) == AX_OK, "poll");
    wrong += !first.is_done_right(stats);
    wrong += !check(ax_wait(context, one, &stats, &fault) == AX_HANDLE, "a handle that is gone");
    first.pairs[1] = 1 << 20;
    wrong += !check(ax_copy(context, &first.job, &stats, &fault) == AX_RANGE, "a block out of range");
    wrong += !check(fault.field == AX_FIELD_PAIR_DESTINATION && fault.index == 0, "the field of a fault");
    wrong += !check(ax_copy(context, &second.job, &stats, nullptr) == AX_OK, "copy");
  }
  return wrong;
}

// A job so large that threads share it.
int run_large(ax_context *context) {
  const uint64_t block = 1 << 20, blocks = 18;
  Side source(1, block, blocks, false, 99), destination(1, block, blocks, false, 0);
  std::vector<int64_t> pairs;
  for (int64_t k = 0; k < static_cast<int64_t>(blocks); ++k) {
    pairs.push_back(k);
    pairs.push_back(static_cast<int64_t>(blocks) - 1 - k);
  }
  ax_job job{};
  job.struct_bytes = sizeof(job);
  job.strategy = AX_COALESCED;
  job.sources = source.planes.data();
  job.destinations = destination.planes.data();
  job.plane_count = 1;
  job.pairs = pairs.data();
  job.pair_count = blocks;
  ax_stats stats{};
  stats.struct_bytes = sizeof(stats);
  int wrong = !check(ax_copy(context, &job, &stats, nullptr) == AX_OK, "a large copy");
  for (uint64_t k = 0; k < blocks; ++k)
    wrong += !check(std::memcmp(source.page(0, k), destination.page(0, blocks - 1 - k), block) == 0, "a large page");
  return wrong;
}

int refuse_nulls(ax_context *context) {
  ax_stats stats{};
  uint64_t handle = 0;
  int wrong = !check(ax_copy(context, nullptr, &stats, nullptr) == AX_STRUCT, "stats of no size");
  stats.struct_bytes = sizeof(stats);
  wrong += !check(ax_copy(context, nullptr, &stats, nullptr) == AX_NULL, "no job");
  wrong += !check(ax_copy(nullptr, nullptr, &stats, nullptr) == AX_NULL, "no context");
  wrong += !check(ax_submit(context, nullptr, nullptr, nullptr) == AX_NULL, "no handle");
  wrong += !check(ax_poll(context, 12345, nullptr, nullptr) == AX_NULL, "no stats");
  ax_job job{};
  wrong += !check(ax_submit(context, &job, &handle, nullptr) == AX_STRUCT, "a job of no size");
  job.struct_bytes = sizeof(job);
  job.plane_count = 1;
  wrong += !check(ax_submit(context, &job, &handle, nullptr) == AX_NULL, "no planes");
  wrong += !check(ax_open(nullptr, &context, nullptr) == AX_NULL, "no options");
  return wrong;
}

}  // namespace

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  ax_options options{};
  options.struct_bytes = sizeof(options);
  options.threads = 3;
  options.slot_bytes = 4096;
  options.slots = 2;
  ax_context *context = nullptr;
  if (!check(ax_open(&options, &context, nullptr) == AX_OK, "open")) return 1;

  std::vector<std::thread> workers;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t)
    workers.emplace_back([&, t] { wrong[t] = run_jobs(context, t, rounds); });
  for (std::thread &worker : workers) worker.join();
  for (const int one : wrong) failures += one;

  failures += run_large(context);
  failures += refuse_nulls(context);

  // Jobs that nobody waits for are finished by ax_close.
  std::mt19937_64 random(7);
  Work last(random);
  uint64_t handle = 0;
  failures += !check(ax_submit(context, &last.job, &handle, nullptr) == AX_OK, "the last job");
  ax_close(context);
  ax_stats stats{};
  stats.pages = last.source.planes.size() * last.pairs.size() / 2;
  failures += !last.is_done_right(stats);
  std::printf("%d wrong\n", failures);
  return failures == 0 ? 0 : 1;
}
