// What `swap_gpu.py` runs on the card: every way to move pages between the memories, checked byte for byte, then timed in turns.
//
// Plain CUDA and the library's C interface, no other library. The plan comes on standard input, a line for each cell: bytes
// of a page, blocks, layers. Results go to standard output, a JSON object a line.
//
//     rounds ROUNDS SECONDS IS_CALIBRATED
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "autellix_swap.h"
#ifdef AX_STAND_IN
#include "stand_in.hpp"
#endif

namespace {

constexpr uint64_t SLOT_BYTES = UINT64_C(4) << 20;
constexpr uint64_t MOST_CHECKED_BYTES = UINT64_C(64) << 20;
// As vLLM's kernel that reads and writes host memory itself: as many programs, and its least number of pages.
constexpr unsigned BUS_BLOCKS = 12, BUS_THREADS = 256;

uint64_t number(const void *memory) { return reinterpret_cast<uintptr_t>(memory); }

[[noreturn]] void stop(const std::string &why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

void must(cudaError_t error) {
  if (error != cudaSuccess) stop("CUDA error " + std::to_string(error));
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Cell {
  uint64_t page_bytes, blocks, layers;
  uint64_t bytes() const { return page_bytes * blocks * layers; }
  uint64_t pages() const { return blocks * layers; }
};

// Pages as a kernel reads them from host memory: all of them of one size.
struct Page {
  uint64_t source, destination;
};

__global__ void move_over_bus(const Page *pages, uint32_t count, uint32_t words) {
  for (uint32_t p = blockIdx.x; p < count; p += gridDim.x) {
    const Page page = pages[p];
    const uint4 *source = reinterpret_cast<const uint4 *>(page.source);
    uint4 *destination = reinterpret_cast<uint4 *>(page.destination);
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) destination[i] = source[i];
  }
}

// What decoding does to the memory: all multiprocessors stream through it.
__global__ void stream_through(uint4 *to, const uint4 *from, uint64_t words) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < words; i += uint64_t{gridDim.x} * blockDim.x)
    to[i] = from[i];
}

struct Contestant {
  std::string name;
  std::function<uint64_t()> copy;  // queues, waits, and returns its transfers
};

class Bench {
 public:
  Bench(uint64_t most_bytes, bool is_calibrated) : most_bytes_(most_bytes) {
    must(cudaMalloc(&near_, 2 * most_bytes));
    must(cudaMallocHost(&far_, most_bytes));
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ax_options options{};
    options.struct_bytes = sizeof(options);
    options.backend = AX_CUDA;
    options.threads = 1;
    options.slot_bytes = SLOT_BYTES;
    options.slots = 2;
    ax_fault fault{};
    if (ax_open(&options, &context_, &fault)) stop(ax_error_text(fault.code));
    table_.struct_bytes = sizeof(table_);
    table_.backend = AX_CUDA;
    has_table_ = is_calibrated;
    const double begun_s = now_s();
    if (is_calibrated && ax_calibrate(context_, &table_, nullptr)) stop("the library does not calibrate");
    std::printf("{\"kind\": \"calibration\", \"seconds\": %.3f, \"table\": [", now_s() - begun_s);
    const double *cells = &table_.seconds[0][0][0][0];
    for (size_t i = 0; i < sizeof(table_.seconds) / sizeof(double); ++i) std::printf("%s%.4g", i ? ", " : "", cells[i]);
    std::printf("]}\n");
  }

  ~Bench() {
    ax_close(context_);
    cudaStreamDestroy(stream_);
    cudaFreeHost(far_);
    cudaFree(near_);
    cudaFree(pages_);
    cudaFreeHost(pages_source_);
  }

  double ceiling_s(uint32_t direction) const {
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const double begun_s = now_s();
      must(cudaMemcpyAsync(direction == AX_STORE ? far_ : near_, direction == AX_STORE ? near_ : far_, most_bytes_,
                           cudaMemcpyDefault, stream_));
      must(cudaStreamSynchronize(stream_));
      best = std::min(best, now_s() - begun_s);
    }
    return best;
  }

  void set(const Cell &cell, uint32_t direction) {
    cell_ = cell;
    direction_ = direction;
    near_planes_.clear();
    far_planes_.clear();
    pairs_.clear();
    sources_.clear();
    destinations_.clear();
    // Every second block of layers that lie apart, to adjacent blocks whose layers lie together.
    const uint64_t row = 2 * cell.blocks * cell.page_bytes, stride = cell.layers * cell.page_bytes;
    for (uint64_t l = 0; l < cell.layers; ++l) {
      near_planes_.push_back({number(near_) + l * row, cell.page_bytes, cell.page_bytes, 2 * cell.blocks});
      far_planes_.push_back({number(far_) + l * cell.page_bytes, cell.page_bytes, stride, cell.blocks});
      for (uint64_t b = 0; b < cell.blocks; ++b) {
        void *near = static_cast<char *>(near_) + l * row + 2 * b * cell.page_bytes;
        void *far = static_cast<char *>(far_) + b * stride + l * cell.page_bytes;
        sources_.push_back(direction == AX_STORE ? near : far);
        destinations_.push_back(direction == AX_STORE ? far : near);
      }
    }
    for (uint64_t b = 0; b < cell.blocks; ++b) {
      pairs_.push_back(static_cast<int64_t>(direction == AX_STORE ? 2 * b : b));
      pairs_.push_back(static_cast<int64_t>(direction == AX_STORE ? b : 2 * b));
    }
    sizes_.assign(sources_.size(), cell.page_bytes);
    cudaFree(pages_);
    cudaFreeHost(pages_source_);
    must(cudaMalloc(&pages_, sources_.size() * sizeof(Page)));
    must(cudaMallocHost(&pages_source_, sources_.size() * sizeof(Page)));
  }

  std::vector<Contestant> contestants() {
    std::vector<Contestant> all{{"page by page", [this] { return copy_singly(); }}};
#if CUDART_VERSION >= 12080
    all.push_back({"batch", [this] { return copy_batch(); }});
#endif
    all.push_back({"kernel over the bus", [this] { return copy_over_bus(); }});
    const std::pair<const char *, uint32_t> ours[] = {
        {"ours, per page", AX_PER_PAGE}, {"ours, coalesced", AX_COALESCED}, {"ours, staged", AX_STAGED}, {"ours, auto", AX_AUTO}};
    for (const auto &[name, strategy] : ours) all.push_back({name, [this, strategy = strategy] { return copy_ours(strategy); }});
    return all;
  }

  // Onto cleared memory, and every byte compared, those between the pages included.
  void check(const Contestant &one) {
    const uint64_t near_bytes = 2 * cell_.bytes(), far_bytes = cell_.bytes(), page = cell_.page_bytes;
    std::vector<char> pattern(near_bytes), want_near(near_bytes, 0), want_far(far_bytes, 0);
    for (uint64_t i = 0; i < near_bytes; ++i) pattern[i] = static_cast<char>((i * 2654435761u) >> 13);
    const bool is_store = direction_ == AX_STORE;
    if (is_store) want_near = pattern;
    if (!is_store) std::copy_n(pattern.begin(), far_bytes, want_far.begin());
    for (uint64_t l = 0; l < cell_.layers; ++l)
      for (uint64_t b = 0; b < cell_.blocks; ++b) {
        char *near = want_near.data() + (l * 2 * cell_.blocks + 2 * b) * page;
        char *far = want_far.data() + (b * cell_.layers + l) * page;
        std::memcpy(is_store ? far : near, is_store ? near : far, page);
      }
    if (is_store) {
      must(cudaMemcpy(near_, pattern.data(), near_bytes, cudaMemcpyDefault));
      std::memset(far_, 0, far_bytes);
    } else {
      must(cudaMemset(near_, 0, near_bytes));
      std::memcpy(far_, pattern.data(), far_bytes);
    }
    must(cudaDeviceSynchronize());
    one.copy();
    std::vector<char> found(near_bytes);
    must(cudaMemcpy(found.data(), near_, near_bytes, cudaMemcpyDefault));
    if (found != want_near || std::memcmp(far_, want_far.data(), far_bytes) != 0)
      stop(one.name + " did not copy what it should: pages of " + std::to_string(page) + " bytes, " +
           std::to_string(cell_.blocks) + " blocks, direction " + std::to_string(direction_));
  }

  // How long the memory's own work takes while `beside` runs again and again; null: alone.
  double busy_s(const Contestant *beside, uint64_t launches) {
    cudaStream_t work;
    cudaEvent_t begun, ended;
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0));
    must(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&begun, cudaEventDefault));
    must(cudaEventCreateWithFlags(&ended, cudaEventDefault));
    uint4 *to = nullptr, *from = nullptr;
    uint64_t words = std::min(most_bytes_, MOST_CHECKED_BYTES) / sizeof(uint4);
    must(cudaMalloc(reinterpret_cast<void **>(&to), words * sizeof(uint4)));
    must(cudaMalloc(reinterpret_cast<void **>(&from), words * sizeof(uint4)));
    void *arguments[] = {&to, &from, &words};
    must(cudaEventRecord(begun, work));
    for (uint64_t n = 0; n < launches; ++n)
      must(cudaLaunchKernel(stream_through, dim3(static_cast<unsigned>(4 * properties.multiProcessorCount)), dim3(256),
                            arguments, 0, work));
    must(cudaEventRecord(ended, work));
    while (beside != nullptr && cudaEventQuery(ended) != cudaSuccess) beside->copy();
    cudaGetLastError();  // that it was not ready
    must(cudaStreamSynchronize(work));
    float elapsed_ms = 0;
    must(cudaEventElapsedTime(&elapsed_ms, begun, ended));
    must(cudaFree(to));
    must(cudaFree(from));
    must(cudaEventDestroy(begun));
    must(cudaEventDestroy(ended));
    must(cudaStreamDestroy(work));
    return elapsed_ms / 1e3;
  }

  // How long the last block takes, alone or right behind the others, whose time comes second.
  std::pair<double, double> last_block_s(bool is_behind) {
    const uint64_t others = cell_.blocks - 1;
    uint64_t large = 0, small = 0;
    ax_stats stats{};
    stats.struct_bytes = sizeof(stats);
    const ax_job first = job_of(AX_STAGED, 0, others), last = job_of(AX_STAGED, others, 1);
    const double begun_s = now_s();
    if (is_behind && ax_submit(context_, &first, &large, nullptr)) stop("the library refuses a job");
    if (ax_submit(context_, &last, &small, nullptr) || ax_wait(context_, small, &stats, nullptr)) stop("the library fails a job");
    const double small_s = now_s() - begun_s;
    if (is_behind && ax_wait(context_, large, &stats, nullptr)) stop("the library fails a job");
    return {small_s, now_s() - begun_s};
  }

 private:
  uint64_t copy_singly() {
    for (size_t i = 0; i < sources_.size(); ++i)
      must(cudaMemcpyAsync(destinations_[i], sources_[i], sizes_[i], cudaMemcpyDefault, stream_));
    must(cudaStreamSynchronize(stream_));
    return sources_.size();
  }

#if CUDART_VERSION >= 12080
  // As vLLM: single pages, whose order of reading is free for loads.
  uint64_t copy_batch() {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = direction_ == AX_LOAD ? cudaMemcpySrcAccessOrderAny : cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
#if CUDART_VERSION >= 13000
    must(cudaMemcpyBatchAsync(destinations_.data(), const_cast<const void **>(sources_.data()), sizes_.data(), sizes_.size(),
                              &attributes, &first, 1, stream_));
#else
    size_t failed = 0;
    must(cudaMemcpyBatchAsync(destinations_.data(), sources_.data(), sizes_.data(), sizes_.size(), &attributes, &first, 1,
                              &failed, stream_));
#endif
    must(cudaStreamSynchronize(stream_));
    return sources_.size();
  }
#endif

  // The addresses go along with every job, as they would in an engine.
  uint64_t copy_over_bus() {
    auto *host = static_cast<Page *>(pages_source_);
    for (size_t i = 0; i < sources_.size(); ++i) host[i] = {number(sources_[i]), number(destinations_[i])};
    must(cudaMemcpyAsync(pages_, host, sources_.size() * sizeof(Page), cudaMemcpyHostToDevice, stream_));
    auto *pages = static_cast<const Page *>(pages_);
    auto count = static_cast<uint32_t>(sources_.size()), words = static_cast<uint32_t>(cell_.page_bytes / sizeof(uint4));
    void *arguments[] = {&pages, &count, &words};
    must(cudaLaunchKernel(move_over_bus, dim3(std::min(count, BUS_BLOCKS)), dim3(BUS_THREADS), arguments, 0, stream_));
    must(cudaStreamSynchronize(stream_));
    return sources_.size();
  }

  ax_job job_of(uint32_t strategy, uint64_t first, uint64_t count) const {
    ax_job job{};
    job.struct_bytes = sizeof(job);
    job.strategy = strategy;
    job.direction = direction_;
    job.flags = direction_ == AX_LOAD ? AX_SOURCE_STABLE : 0;
    job.sources = (direction_ == AX_STORE ? near_planes_ : far_planes_).data();
    job.destinations = (direction_ == AX_STORE ? far_planes_ : near_planes_).data();
    job.plane_count = near_planes_.size();
    job.pairs = pairs_.data() + 2 * first;
    job.pair_count = count;
    job.table = has_table_ ? &table_ : nullptr;
    return job;
  }

  uint64_t copy_ours(uint32_t strategy) {
    const ax_job job = job_of(strategy, 0, cell_.blocks);
    ax_stats stats{};
    stats.struct_bytes = sizeof(stats);
    ax_fault fault{};
    if (ax_copy(context_, &job, &stats, &fault)) stop("the library: " + std::string(ax_error_text(fault.code)));
    return stats.transfers;
  }

  const uint64_t most_bytes_;
  void *near_ = nullptr, *far_ = nullptr, *pages_ = nullptr, *pages_source_ = nullptr;
  cudaStream_t stream_ = nullptr;
  ax_context *context_ = nullptr;
  ax_table table_{};
  bool has_table_ = false;
  Cell cell_{};
  uint32_t direction_ = AX_STORE;
  std::vector<ax_plane> near_planes_, far_planes_;
  std::vector<int64_t> pairs_;
  std::vector<void *> sources_, destinations_;
  std::vector<size_t> sizes_;
};

const char *name_of(uint32_t direction) { return direction == AX_STORE ? "store" : "load"; }

// Medians of rounds in turns; after the deadline three rounds must do.
void time_cell(Bench &bench, const Cell &cell, uint32_t direction, int rounds, double deadline_s) {
  const std::vector<Contestant> all = bench.contestants();
  const bool is_checked = cell.bytes() <= MOST_CHECKED_BYTES;
  if (is_checked)
    for (const Contestant &one : all) bench.check(one);
  std::vector<std::vector<double>> seconds(all.size());
  std::vector<uint64_t> transfers(all.size());
  for (int round = 0; round < rounds && (round < 3 || now_s() < deadline_s); ++round)
    for (size_t i = 0; i < all.size(); ++i) {
      const double begun_s = now_s();
      transfers[i] = all[i].copy();
      seconds[i].push_back(now_s() - begun_s);
    }
  for (size_t i = 0; i < all.size(); ++i) {
    std::nth_element(seconds[i].begin(), seconds[i].begin() + static_cast<std::ptrdiff_t>(seconds[i].size() / 2), seconds[i].end());
    std::printf("{\"kind\": \"result\", \"direction\": \"%s\", \"page_kib\": %llu, \"blocks\": %llu, \"layers\": %llu, "
                "\"contestant\": \"%s\", \"seconds\": %.9f, \"transfers\": %llu, \"rounds\": %zu, \"is_checked\": %s}\n",
                name_of(direction), static_cast<unsigned long long>(cell.page_bytes >> 10),
                static_cast<unsigned long long>(cell.blocks), static_cast<unsigned long long>(cell.layers),
                all[i].name.c_str(), seconds[i][seconds[i].size() / 2], static_cast<unsigned long long>(transfers[i]),
                seconds[i].size(), is_checked ? "true" : "false");
  }
  std::fflush(stdout);
}

void time_beside(Bench &bench, const Cell &cell, uint64_t launches) {
  bench.busy_s(nullptr, launches);  // warms up
  const double alone_s = bench.busy_s(nullptr, launches);
  for (const uint32_t direction : {AX_STORE, AX_LOAD}) {
    bench.set(cell, direction);
    for (const Contestant &one : bench.contestants())
      std::printf("{\"kind\": \"slowdown\", \"direction\": \"%s\", \"contestant\": \"%s\", \"factor\": %.4f}\n",
                  name_of(direction), one.name.c_str(), bench.busy_s(&one, launches) / alone_s);
  }
}

// A small job behind a large one of the same direction, which it may pass.
void time_behind(Bench &bench, const Cell &cell) {
  for (const uint32_t direction : {AX_STORE, AX_LOAD}) {
    bench.set(cell, direction);
    double alone_s = 1e9, behind_s = 1e9, large_s = 1e9;
    for (int round = 0; round < 5; ++round) {
      alone_s = std::min(alone_s, bench.last_block_s(false).first);
      const auto [small, both] = bench.last_block_s(true);
      behind_s = std::min(behind_s, small);
      large_s = std::min(large_s, both);
    }
    std::printf("{\"kind\": \"behind\", \"direction\": \"%s\", \"large_mib\": %.1f, \"alone_s\": %.9f, \"behind_s\": %.9f, "
                "\"large_s\": %.9f}\n",
                name_of(direction), static_cast<double>(cell.bytes()) / (1 << 20), alone_s, behind_s, large_s);
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  const int rounds = std::atoi(argv[1]);
  const double deadline_s = now_s() + std::atof(argv[2]);
#ifdef AX_STAND_IN
  stand_in::Settings settings;
  settings.devices = 1;
  settings.kernels_stay_near = false;
  stand_in::reset(settings);
#endif
  std::vector<Cell> plan;
  for (Cell cell{}; std::cin >> cell.page_bytes >> cell.blocks >> cell.layers;) plan.push_back(cell);
  if (plan.empty()) stop("no plan");
  uint64_t most_bytes = 0;
  for (const Cell &cell : plan) most_bytes = std::max(most_bytes, cell.bytes());
  cudaDeviceProp properties;
  int driver = 0;
  must(cudaGetDeviceProperties(&properties, 0));
  must(cudaDriverGetVersion(&driver));
  std::printf("{\"kind\": \"device\", \"name\": \"%s\", \"runtime\": %d, \"driver\": %d}\n", properties.name, CUDART_VERSION,
              driver);
  Bench bench(most_bytes, std::atoi(argv[3]) != 0);
  for (const uint32_t direction : {AX_STORE, AX_LOAD})
    std::printf("{\"kind\": \"ceiling\", \"direction\": \"%s\", \"gb_per_s\": %.4f}\n", name_of(direction),
                static_cast<double>(most_bytes) / bench.ceiling_s(direction) / 1e9);
  for (const uint32_t direction : {AX_STORE, AX_LOAD})
    for (const Cell &cell : plan) {
      bench.set(cell, direction);
      time_cell(bench, cell, direction, rounds, deadline_s);
    }
  Cell beside{};
  for (const Cell &cell : plan)
    if (cell.page_bytes == 32 << 10 && cell.bytes() <= MOST_CHECKED_BYTES) beside = cell;
#ifdef AX_STAND_IN
  const uint64_t launches = 2;  // each takes a tenth of a second of the processor
#else
  const uint64_t launches = std::max<uint64_t>(1, 40 * static_cast<uint64_t>(rounds));
#endif
  if (beside.blocks > 0) time_behind(bench, beside);
  if (beside.blocks > 0) time_beside(bench, beside, launches);
  return 0;
}
