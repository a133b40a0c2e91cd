#include "checks.hpp"

#include <algorithm>
#include <numeric>

namespace ax {

int32_t fail(ax_fault &fault, int32_t code, int32_t field, uint64_t index) {
  fault = ax_fault{};
  fault.code = code;
  fault.field = field;
  fault.index = index;
  return code;
}

namespace {

// Offsets from AX_FIELD_SOURCES, or AX_FIELD_DESTINATIONS, to the parts of a plane.
enum Part { WHOLE = 0, BASE = 1, BLOCK_BYTES = 2, STRIDE = 3, BLOCKS = 4 };

bool is_aligned(uint64_t value) { return value % AX_ALIGNMENT == 0; }

// One past the last byte. Only for planes that passed check_plane.
uint64_t end_of(const ax_plane &plane) {
  return plane.base + (plane.blocks - 1) * plane.stride_bytes + plane.block_bytes;
}

bool is_beyond_memory(const ax_plane &plane) {
  const uint64_t room = UINT64_MAX - plane.base;
  if (plane.block_bytes > room) return true;
  return plane.blocks > 1 && plane.stride_bytes > (room - plane.block_bytes) / (plane.blocks - 1);
}

int32_t check_plane(const ax_plane &plane, int32_t list, uint64_t index, ax_fault &fault) {
  if (plane.base == 0) return fail(fault, AX_NULL, list + BASE, index);
  if (plane.block_bytes == 0 || plane.block_bytes > AX_MAX_BLOCK_BYTES)
    return fail(fault, AX_LIMIT, list + BLOCK_BYTES, index);
  if (plane.blocks == 0 || plane.blocks > AX_MAX_BLOCKS) return fail(fault, AX_LIMIT, list + BLOCKS, index);
  if (!is_aligned(plane.base)) return fail(fault, AX_ALIGN, list + BASE, index);
  if (!is_aligned(plane.block_bytes)) return fail(fault, AX_ALIGN, list + BLOCK_BYTES, index);
  if (!is_aligned(plane.stride_bytes)) return fail(fault, AX_ALIGN, list + STRIDE, index);
  if (plane.stride_bytes < plane.block_bytes) return fail(fault, AX_STRIDE, list + STRIDE, index);
  if (is_beyond_memory(plane)) return fail(fault, AX_OVERFLOW, list + WHOLE, index);
  return AX_OK;
}

int32_t check_planes(const Job &job, ax_fault &fault) {
  for (uint64_t i = 0; i < job.sources.size(); ++i) {
    if (const int32_t code = check_plane(job.sources[i], AX_FIELD_SOURCES, i, fault)) return code;
    if (const int32_t code = check_plane(job.destinations[i], AX_FIELD_DESTINATIONS, i, fault)) return code;
    if (job.sources[i].block_bytes != job.destinations[i].block_bytes)
      return fail(fault, AX_MISMATCH, AX_FIELD_DESTINATION_BLOCK_BYTES, i);
  }
  return AX_OK;
}

uint64_t fewest_blocks(const std::vector<ax_plane> &planes) {
  uint64_t fewest = AX_MAX_BLOCKS;
  for (const ax_plane &plane : planes) fewest = std::min(fewest, plane.blocks);
  return fewest;
}

int32_t take_pairs(const ax_job &given, Job &job, ax_fault &fault) {
  const uint64_t sources = fewest_blocks(job.sources), destinations = fewest_blocks(job.destinations);
  job.pairs.reserve(given.pair_count);
  for (uint64_t k = 0; k < given.pair_count; ++k) {
    // A negative number becomes one beyond every plane.
    const Pair pair{static_cast<uint64_t>(given.pairs[2 * k]), static_cast<uint64_t>(given.pairs[2 * k + 1])};
    if (pair.source >= sources) return fail(fault, AX_RANGE, AX_FIELD_PAIR_SOURCE, k);
    if (pair.destination >= destinations) return fail(fault, AX_RANGE, AX_FIELD_PAIR_DESTINATION, k);
    job.pairs.push_back(pair);
  }
  return AX_OK;
}

int32_t order_pairs(Job &job, ax_fault &fault) {
  job.by_destination.resize(job.pairs.size());
  std::iota(job.by_destination.begin(), job.by_destination.end(), 0u);
  const auto before = [&](uint32_t a, uint32_t b) {
    const uint64_t left = job.pairs[a].destination, right = job.pairs[b].destination;
    return left != right ? left < right : a < b;
  };
  if (!std::is_sorted(job.by_destination.begin(), job.by_destination.end(), before))
    std::sort(job.by_destination.begin(), job.by_destination.end(), before);
  uint64_t twice = UINT64_MAX;
  for (size_t i = 1; i < job.by_destination.size(); ++i) {
    const uint32_t earlier = job.by_destination[i - 1], later = job.by_destination[i];
    if (job.pairs[earlier].destination == job.pairs[later].destination) twice = std::min<uint64_t>(twice, later);
  }
  return twice == UINT64_MAX ? AX_OK : fail(fault, AX_TWICE, AX_FIELD_PAIR_DESTINATION, twice);
}

struct Extent {
  uint64_t begin;
  uint64_t end;
  uint64_t index;
  bool is_source;
};

std::vector<Extent> extents(const Job &job) {
  std::vector<Extent> all;
  all.reserve(2 * job.sources.size());
  for (uint64_t i = 0; i < job.sources.size(); ++i) {
    all.push_back({job.sources[i].base, end_of(job.sources[i]), i, true});
    all.push_back({job.destinations[i].base, end_of(job.destinations[i]), i, false});
  }
  std::sort(all.begin(), all.end(), [](const Extent &a, const Extent &b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    return a.is_source != b.is_source ? a.is_source : a.index < b.index;
  });
  return all;
}

// Planes whose extents overlap are valid only if they interleave: one stride, and no two share a byte of its period.
int32_t check_cluster(const Job &job, std::vector<uint64_t> &cluster, ax_fault &fault) {
  if (cluster.size() < 2) return AX_OK;
  const uint64_t stride = job.destinations[cluster[0]].stride_bytes;
  for (const uint64_t i : cluster)
    if (job.destinations[i].stride_bytes != stride) return fail(fault, AX_OVERLAP, AX_FIELD_DESTINATIONS, i);
  const auto phase = [&](uint64_t i) { return job.destinations[i].base % stride; };
  std::sort(cluster.begin(), cluster.end(),
            [&](uint64_t a, uint64_t b) { return phase(a) != phase(b) ? phase(a) < phase(b) : a < b; });
  for (size_t k = 0; k < cluster.size(); ++k) {
    const uint64_t i = cluster[k];
    const uint64_t next = k + 1 < cluster.size() ? phase(cluster[k + 1]) : phase(cluster[0]) + stride;
    if (next - phase(i) < job.destinations[i].block_bytes)
      return fail(fault, AX_OVERLAP, AX_FIELD_DESTINATIONS, i);
  }
  return AX_OK;
}

int32_t check_overlap(const Job &job, ax_fault &fault) {
  const std::vector<Extent> all = extents(job);
  uint64_t source_end = 0, destination_end = 0;
  for (const Extent &one : all) {
    const uint64_t other_end = one.is_source ? destination_end : source_end;
    if (one.begin < other_end)
      return fail(fault, AX_OVERLAP, one.is_source ? AX_FIELD_SOURCES : AX_FIELD_DESTINATIONS, one.index);
    uint64_t &end = one.is_source ? source_end : destination_end;
    end = std::max(end, one.end);
  }
  std::vector<uint64_t> cluster;
  uint64_t cluster_end = 0;
  for (const Extent &one : all) {
    if (one.is_source) continue;
    if (one.begin >= cluster_end) {
      if (const int32_t code = check_cluster(job, cluster, fault)) return code;
      cluster.clear();
    }
    cluster.push_back(one.index);
    cluster_end = std::max(cluster_end, one.end);
  }
  return check_cluster(job, cluster, fault);
}

int32_t check_shape(const ax_job &given, ax_fault &fault) {
  if (given.strategy > AX_AUTO) return fail(fault, AX_CHOICE, AX_FIELD_STRATEGY);
  if (given.direction > AX_LOAD) return fail(fault, AX_CHOICE, AX_FIELD_DIRECTION);
  if (given.flags & ~(AX_AFTER_STREAM | AX_SOURCE_STABLE)) return fail(fault, AX_CHOICE, AX_FIELD_FLAGS);
  if (given.plane_count == 0 || given.plane_count > AX_MAX_PLANES) return fail(fault, AX_LIMIT, AX_FIELD_PLANES);
  if (given.pair_count > AX_MAX_PAIRS) return fail(fault, AX_LIMIT, AX_FIELD_PAIRS);
  if (given.sources == nullptr) return fail(fault, AX_NULL, AX_FIELD_SOURCES);
  if (given.destinations == nullptr) return fail(fault, AX_NULL, AX_FIELD_DESTINATIONS);
  if (given.pairs == nullptr && given.pair_count > 0) return fail(fault, AX_NULL, AX_FIELD_PAIRS);
  if (given.table != nullptr && given.table->struct_bytes != sizeof(ax_table))
    return fail(fault, AX_STRUCT, AX_FIELD_TABLE);
  return AX_OK;
}

}  // namespace

int32_t check_job(const ax_job *given, Job &job, ax_fault &fault) {
  if (given == nullptr) return fail(fault, AX_NULL, AX_FIELD_JOB);
  if (given->struct_bytes != sizeof(ax_job)) return fail(fault, AX_STRUCT, AX_FIELD_JOB);
  if (const int32_t code = check_shape(*given, fault)) return code;
  job.strategy = given->strategy;
  job.direction = given->direction;
  job.flags = given->flags;
  job.after_stream = given->after_stream;
  job.sources.assign(given->sources, given->sources + given->plane_count);
  job.destinations.assign(given->destinations, given->destinations + given->plane_count);
  if (const int32_t code = check_planes(job, fault)) return code;
  if (const int32_t code = take_pairs(*given, job, fault)) return code;
  if (const int32_t code = order_pairs(job, fault)) return code;
  return check_overlap(job, fault);
}

int32_t check_options(const ax_options *options, ax_fault &fault) {
  if (options == nullptr) return fail(fault, AX_NULL, AX_FIELD_CONTEXT);
  if (options->struct_bytes != sizeof(ax_options)) return fail(fault, AX_STRUCT, AX_FIELD_CONTEXT);
  if (options->backend > AX_CUDA) return fail(fault, AX_CHOICE, AX_FIELD_BACKEND);
  if (options->threads == 0 || options->threads > AX_MAX_THREADS) return fail(fault, AX_LIMIT, AX_FIELD_THREADS);
  if (options->slot_bytes < AX_MIN_SLOT_BYTES || options->slot_bytes > AX_MAX_SLOT_BYTES)
    return fail(fault, AX_LIMIT, AX_FIELD_SLOT_BYTES);
  if (options->slot_bytes % AX_MIN_SLOT_BYTES != 0) return fail(fault, AX_ALIGN, AX_FIELD_SLOT_BYTES);
  if (options->slots < 2 || options->slots > AX_MAX_SLOTS) return fail(fault, AX_LIMIT, AX_FIELD_SLOTS);
  return AX_OK;
}

}  // namespace ax
