#include "plan.hpp"

#include <algorithm>
#include <numeric>

namespace ax {

namespace {

uint64_t address(const ax_plane &plane, uint64_t block) { return plane.base + block * plane.stride_bytes; }

// Whether all planes of one block lie within one stride, so that a block's layers are neighbours (BLHNC).
bool is_interleaved(const std::vector<ax_plane> &planes) {
  uint64_t begin = UINT64_MAX, end = 0;
  for (const ax_plane &plane : planes) {
    if (plane.stride_bytes != planes[0].stride_bytes) return false;
    begin = std::min(begin, plane.base);
    end = std::max(end, plane.base + plane.block_bytes);
  }
  return planes.size() > 1 && end - begin <= planes[0].stride_bytes;
}

std::vector<uint32_t> planes_by_base(const std::vector<ax_plane> &planes) {
  std::vector<uint32_t> order(planes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return planes[a].base < planes[b].base; });
  return order;
}

std::vector<uint32_t> pairs_by_source(const Job &job) {
  std::vector<uint32_t> order(job.pairs.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](uint32_t a, uint32_t b) { return job.pairs[a].source < job.pairs[b].source; };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::stable_sort(order.begin(), order.end(), before);
  return order;
}

// Visits every page as (source address, destination address, bytes).
template <typename Visit>
void each_page(const Job &job, const std::vector<uint32_t> &planes, const std::vector<uint32_t> &pairs,
               bool is_block_major, Visit visit) {
  const auto page = [&](uint32_t i, uint32_t k) {
    const ax_plane &source = job.sources[i], &destination = job.destinations[i];
    visit(address(source, job.pairs[k].source), address(destination, job.pairs[k].destination), source.block_bytes);
  };
  if (is_block_major) {
    for (const uint32_t k : pairs)
      for (const uint32_t i : planes) page(i, k);
  } else {
    for (const uint32_t i : planes)
      for (const uint32_t k : pairs) page(i, k);
  }
}

template <typename Visit>
void each_piece(const Job &job, Visit visit) {
  Piece open{0, 0, 0};
  const bool is_block_major = is_interleaved(job.sources) && is_interleaved(job.destinations);
  each_page(job, planes_by_base(job.destinations), job.by_destination, is_block_major,
            [&](uint64_t source, uint64_t destination, uint64_t bytes) {
              if (open.bytes > 0 && source == open.source + open.bytes && destination == open.destination + open.bytes) {
                open.bytes += bytes;
                return;
              }
              if (open.bytes > 0) visit(open);
              open = {source, destination, bytes};
            });
  if (open.bytes > 0) visit(open);
}

class StagedBuilder {
 public:
  StagedBuilder(StagedPlan &plan, uint64_t slot_bytes) : plan_(plan), slot_bytes_(slot_bytes) {}

  void add(uint64_t near, uint64_t far, uint64_t bytes) {
    while (bytes > 0) {
      if (plan_.chunks.empty() || plan_.chunks.back().bytes == slot_bytes_) open_chunk();
      Chunk &chunk = plan_.chunks.back();
      const uint64_t part = std::min({bytes, slot_bytes_ - chunk.bytes, TASK_BYTES});
      plan_.tasks.push_back({near, chunk.bytes, part});
      extend_run(chunk, far, part);
      chunk.bytes += part;
      chunk.last_task = plan_.tasks.size();
      chunk.last_run = plan_.runs.size();
      near += part;
      far += part;
      bytes -= part;
    }
  }

 private:
  void open_chunk() {
    const size_t task = plan_.tasks.size(), run = plan_.runs.size();
    plan_.chunks.push_back({task, task, run, run, 0});
  }

  void extend_run(const Chunk &chunk, uint64_t far, uint64_t bytes) {
    if (chunk.first_run < plan_.runs.size() && plan_.runs.back().far + plan_.runs.back().bytes == far)
      plan_.runs.back().bytes += bytes;
    else
      plan_.runs.push_back({far, chunk.bytes, bytes});
  }

  StagedPlan &plan_;
  uint64_t slot_bytes_;
};

Touched touched(const std::vector<ax_plane> &planes, std::vector<uint64_t> blocks) {
  Touched made;
  if (blocks.empty()) return made;
  const auto add = [&](const ax_plane &plane) {
    const uint64_t begin = address(plane, blocks.front()), end = address(plane, blocks.back()) + plane.block_bytes;
    made.extents.push_back({begin, end, plane});
    made.longest = std::max(made.longest, end - begin);
  };
  if (is_interleaved(planes)) {
    // As one plane, whose blocks are all of a stride.
    ax_plane whole = planes[planes_by_base(planes)[0]];
    whole.block_bytes = whole.stride_bytes;
    add(whole);
  } else {
    for (const ax_plane &plane : planes) add(plane);
  }
  std::sort(made.extents.begin(), made.extents.end(), [](const Extent &a, const Extent &b) { return a.begin < b.begin; });
  made.blocks = std::move(blocks);
  return made;
}

bool have_common(const std::vector<uint64_t> &a, const std::vector<uint64_t> &b) {
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i] == b[k]) return true;
    if (a[i] < b[k])
      ++i;
    else
      ++k;
  }
  return false;
}

bool touches(const ax_plane &a, const std::vector<uint64_t> &a_blocks, const ax_plane &b,
             const std::vector<uint64_t> &b_blocks) {
  for (size_t i = 0, k = 0; i < a_blocks.size() && k < b_blocks.size();) {
    const uint64_t a_begin = address(a, a_blocks[i]), b_begin = address(b, b_blocks[k]);
    if (b_begin >= a_begin && b_begin - a_begin >= a.block_bytes)
      ++i;
    else if (a_begin >= b_begin && a_begin - b_begin >= b.block_bytes)
      ++k;
    else
      return true;
  }
  return false;
}

bool touches(const Touched &a, const Touched &b) {
  const auto begins_before = [](const Extent &one, uint64_t at) { return one.begin < at; };
  int common = -1;  // whether they have a block in common; unknown
  for (const Extent &one : a.extents) {
    const uint64_t least = one.begin - std::min(one.begin, b.longest);
    auto other = std::lower_bound(b.extents.begin(), b.extents.end(), least, begins_before);
    for (; other != b.extents.end() && other->begin < one.end; ++other) {
      if (other->end <= one.begin) continue;
      // Most jobs are of the same planes, and all planes have the same blocks.
      if (one.plane.base == other->plane.base && one.plane.stride_bytes == other->plane.stride_bytes) {
        if (common < 0) common = have_common(a.blocks, b.blocks);
        if (common) return true;
      } else if (touches(one.plane, a.blocks, other->plane, b.blocks)) {
        return true;
      }
    }
  }
  return false;
}

// The place in the table of a piece by its bytes and the number of pieces: its classes, and its size in units of its class.
double expected_s(const ax_table &table, uint32_t direction, uint32_t strategy, uint64_t pieces, uint64_t bytes) {
  const uint64_t each = std::max<uint64_t>(bytes / pieces, 1);
  uint32_t size = 0;
  while (size + 1 < AX_TABLE_SIZES && (UINT64_C(8192) << size) <= each) ++size;
  const uint32_t count = pieces < 8 ? 0 : pieces < 64 ? 1 : pieces < 1024 ? 2 : 3;
  const double scale = static_cast<double>(bytes) / static_cast<double>(UINT64_C(4096) << size);
  return table.seconds[direction][size][count][strategy - AX_COALESCED] * scale;
}

}  // namespace

uint64_t bytes_of(const Job &job) {
  uint64_t block = 0;
  for (const ax_plane &plane : job.sources) block += plane.block_bytes;
  return block * job.pairs.size();
}

std::vector<Piece> per_page(const Job &job) {
  std::vector<Piece> pieces;
  pieces.reserve(job.sources.size() * job.pairs.size());
  std::vector<uint32_t> planes(job.sources.size()), pairs(job.pairs.size());
  std::iota(planes.begin(), planes.end(), 0u);
  std::iota(pairs.begin(), pairs.end(), 0u);
  each_page(job, planes, pairs, false, [&](uint64_t source, uint64_t destination, uint64_t bytes) {
    pieces.push_back({source, destination, bytes});
  });
  return pieces;
}

std::vector<Piece> coalesced(const Job &job) {
  std::vector<Piece> pieces;
  each_piece(job, [&](const Piece &piece) { pieces.push_back(piece); });
  return pieces;
}

StagedPlan staged(const Job &job, uint64_t slot_bytes) {
  StagedPlan plan;
  StagedBuilder builder(plan, slot_bytes);
  const bool is_load = job.direction == AX_LOAD;
  const std::vector<ax_plane> &far = is_load ? job.sources : job.destinations;
  each_page(job, planes_by_base(far), is_load ? pairs_by_source(job) : job.by_destination, is_interleaved(far),
            [&](uint64_t source, uint64_t destination, uint64_t bytes) {
              builder.add(is_load ? destination : source, is_load ? source : destination, bytes);
            });
  return plan;
}

Footprint footprint(const Job &job) {
  std::vector<uint64_t> sources, destinations;
  for (const uint32_t k : pairs_by_source(job)) sources.push_back(job.pairs[k].source);
  for (const uint32_t k : job.by_destination) destinations.push_back(job.pairs[k].destination);
  Touched from = touched(job.sources, std::move(sources)), to = touched(job.destinations, std::move(destinations));
  if (job.direction == AX_STORE) return {std::move(from), std::move(to), job.direction};
  return {std::move(to), std::move(from), job.direction};
}

bool conflicts(const Footprint &a, const Footprint &b) {
  const bool only_read_near = a.direction == AX_STORE && b.direction == AX_STORE;
  const bool only_read_far = a.direction == AX_LOAD && b.direction == AX_LOAD;
  return (!only_read_far && touches(a.far, b.far)) || (!only_read_near && touches(a.near, b.near));
}

uint32_t choose(const Job &job, const ax_table *table, uint64_t slot_bytes) {
  if (job.strategy != AX_AUTO) return job.strategy;
  if (table == nullptr || job.pairs.empty()) return AX_COALESCED;
  const uint64_t bytes = bytes_of(job), pages = job.sources.size() * job.pairs.size();
  // A slot that holds less than a page cannot gather anything.
  if (slot_bytes <= bytes / pages) return AX_COALESCED;
  uint64_t pieces = 0;
  each_piece(job, [&](const Piece &) { ++pieces; });
  const double direct_s = expected_s(*table, job.direction, AX_COALESCED, pieces, bytes);
  const double staged_s = expected_s(*table, job.direction, AX_STAGED, pieces, bytes);
  return staged_s < direct_s ? AX_STAGED : AX_COALESCED;
}

}  // namespace ax
