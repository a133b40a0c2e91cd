// Runs plays of an engine beside the CUDA back end (`cuda_play.hpp`) by their seeds.
//
// Linked against the stand-in for CUDA (AX_STAND_IN) it also chooses the schedule, lets calls fail and the device get lost;
// on a card it is the same test without these.
//
//     cuda_driver schedules|threads|failures|starts|losses FIRST COUNT
//     cuda_driver exit SEED
//     cuda_driver overlap|reasons SEED
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cuda_play.hpp"
#ifdef AX_STAND_IN
#include "cuda_overlap.hpp"
#endif

namespace {

constexpr int STEPS = 24;

#ifdef AX_STAND_IN
stand_in::Settings settings_of(uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);
  stand_in::Settings settings;
  settings.seed = seed;
  settings.has_batch = random() % 4 > 0;
  settings.batch_error = random() % 2 ? cudaErrorCallRequiresNewerDriver : cudaErrorNotSupported;
  settings.batch_takes_pageable = random() % 2;
  return settings;
}

// The faults that the stand-in found in a play.
void check_world() {
  for (const std::string &fault : stand_in::faults()) throw Wrong{fault};
  if (stand_in::has_lost_device()) return;
  for (const std::string &left : stand_in::leftovers()) throw Wrong{"left behind: " + left};
}
#else
struct NoSettings {};
NoSettings settings_of(uint64_t) { return {}; }
void check_world() {}
#endif

uint64_t play(uint64_t seed, bool may_fail) {
  uint64_t jobs = 0;
  {
    Play one(seed, nullptr);
    one.may_fail = may_fail;
    try {
      if (one.begin()) {
        one.run(STEPS);
        one.close();
      }
    } catch (const Lost &) {
      one.close_lost();
    }
    jobs = one.jobs;
  }
  check_world();
  return jobs;
}

// Several threads of the host share a context, each with memory of its own.
uint64_t play_together(uint64_t seed) {
  ax_options options{};
  options.struct_bytes = sizeof(options);
  options.backend = AX_CUDA;
  options.threads = 1;
  options.slot_bytes = 4096;
  options.slots = 2;
  ax_context *context = nullptr;
  check(ax_open(&options, &context, nullptr) == AX_OK, "open");
  std::vector<std::string> wrong(3);
  std::vector<uint64_t> jobs(wrong.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      try {
        Play one(seed * 16 + t, context);
        one.begin();
        one.run(STEPS);
        one.close();
        jobs[t] = one.jobs;
      } catch (const Wrong &found) {
        wrong[t] = found.what;
      }
    });
  for (std::thread &thread : threads) thread.join();
  ax_close(context);
  for (const std::string &what : wrong)
    if (!what.empty()) throw Wrong{what};
  check_world();
  return jobs[0] + jobs[1] + jobs[2];
}

struct Totals {
  uint64_t plays = 0, jobs = 0, wrong = 0;

  template <typename One>
  bool add(uint64_t seed, const char *about, One one) {
    ++plays;
    try {
      jobs += one();
      return true;
    } catch (const Wrong &found) {
      ++wrong;
      std::fprintf(stderr, "seed %llu%s%s: %s\n", static_cast<unsigned long long>(seed), *about ? ", " : "", about,
                   found.what.c_str());
      return false;
    }
  }
};

#ifdef AX_STAND_IN
void begin_world(const stand_in::Settings &settings) { stand_in::reset(settings); }

// Each call of a play fails in turn, up to one.
void play_failures(uint64_t seed, uint64_t last, Totals &totals) {
  const cudaError_t errors[] = {cudaErrorMemoryAllocation, cudaErrorLaunchFailure, cudaErrorInvalidValue};
  for (uint64_t at = 1; at <= last && totals.wrong == 0; ++at) {
    stand_in::Settings settings = settings_of(seed);
    settings.fail_at = at;
    settings.fail_with = errors[at % 3];
    begin_world(settings);
    const std::string about = "call " + std::to_string(at);
    totals.add(seed, about.c_str(), [&] { return play(seed, true); });
    if (!stand_in::has_failed(nullptr)) return;
  }
}

// The device is lost at some piece of its work.
void play_loss(uint64_t seed, Totals &totals) {
  begin_world(settings_of(seed));
  if (!totals.add(seed, "", [&] { return play(seed, false); })) return;
  stand_in::Settings settings = settings_of(seed);
  settings.lose_at = 1 + (seed * 7919) % stand_in::work_done();
  settings.lose_with = seed % 2 ? cudaErrorECCUncorrectable : cudaErrorIllegalAddress;
  begin_world(settings);
  totals.add(seed, "device lost", [&] { return play(seed, false); });
}
#else
void begin_world(NoSettings) {}
#endif

int leave(uint64_t seed) {
  begin_world(settings_of(seed));
  auto *one = new Play(seed, nullptr);
  check(one->begin(), "begin");
  one->run(2);
  std::exit(0);  // with jobs under way, and nothing closed
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const std::string mode = argv[1];
  const uint64_t first = std::strtoull(argv[2], nullptr, 10), count = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  if (mode == "exit") return leave(first);
  Totals totals;
  for (uint64_t seed = first; seed < first + count && totals.wrong == 0; ++seed) {
    if (mode == "schedules") {
      begin_world(settings_of(seed));
      totals.add(seed, "", [&] { return play(seed, false); });
    } else if (mode == "threads") {
      begin_world(settings_of(seed));
      totals.add(seed, "", [&] { return play_together(seed); });
#ifdef AX_STAND_IN
    } else if (mode == "failures") {
      play_failures(seed, UINT64_MAX, totals);
    } else if (mode == "starts") {
      play_failures(seed, 80, totals);
    } else if (mode == "losses") {
      play_loss(seed, totals);
    } else if (mode == "overlap") {
      totals.add(seed, "", [&] { return play_overlap(settings_of(seed)); });
    } else if (mode == "reasons") {
      totals.add(seed, "", [&] { return play_reasons(settings_of(seed)); });
#endif
    } else {
      return 2;
    }
  }
  std::printf("%s: %llu plays, %llu jobs, %llu wrong\n", mode.c_str(), static_cast<unsigned long long>(totals.plays),
              static_cast<unsigned long long>(totals.jobs), static_cast<unsigned long long>(totals.wrong));
  return totals.wrong == 0 ? 0 : 1;
}
