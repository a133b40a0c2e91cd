#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace stand_in {

namespace {

constexpr uint64_t PAGE_BYTES = 4096;

void *pointer(uint64_t address) { return reinterpret_cast<void *>(static_cast<uintptr_t>(address)); }

std::string hex(uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

void join(Clock &clock, const Clock &other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

NearArena::NearArena() {
  void *memory = mmap(nullptr, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  base_ = next_ = reinterpret_cast<uintptr_t>(memory);
}

NearArena::~NearArena() { munmap(pointer(base_), BYTES); }

uint64_t NearArena::take(uint64_t bytes) {
  const uint64_t room = (bytes + 2 * PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;  // a page between two
  if (room > base_ + BYTES - next_) return 0;
  // As far back as CUDA's alignment allows, so that what follows soon is no memory.
  const uint64_t base = next_ + (room - PAGE_BYTES - bytes) / 256 * 256;
  next_ += room;
  is_open_ = false;
  open(true);
  std::memset(pointer(base), 0xdb, bytes);
  open(false);
  return base;
}

void NearArena::clear() {
  madvise(pointer(base_), next_ - base_, MADV_DONTNEED);
  next_ = base_;
  is_open_ = false;
}

void NearArena::open(bool is_open) {
  if (is_open_ == is_open) return;
  is_open_ = is_open;
  if (next_ > base_) mprotect(pointer(base_), next_ - base_, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void Memory::clear() {
  for (const auto &[base, region] : regions_)
    if (region.place == Place::PINNED && !region.is_registered) std::free(pointer(base));
  regions_.clear();
  pages_.clear();
  last_number_ = UINT64_MAX;
  for (NearArena &arena : arenas_) arena.clear();
}

std::string Memory::unsettled(const Region &region, const Clock &clock) const {
  for (const auto &[number, page] : pages_)
    for (uint64_t i = 0; i < page->size(); ++i) {
      const uint64_t at = number * PAGE_BYTES + 8 * i;
      if (at < region.base || at - region.base >= region.bytes) continue;
      if (!(*page)[i].is_written_before(clock) || !(*page)[i].is_read_before(clock)) return hex(at);
    }
  return "";
}

void Memory::remove(uint64_t base) {
  const auto found = regions_.find(base);
  const uint64_t end = base + found->second.bytes;
  for (auto page = pages_.begin(); page != pages_.end();) {
    const uint64_t begin = page->first * PAGE_BYTES;
    // What shares a page with other memory keeps its marks: they are ordered, or a fault has been reported.
    page = begin >= base && begin + PAGE_BYTES <= end ? pages_.erase(page) : std::next(page);
  }
  last_number_ = UINT64_MAX;
  regions_.erase(found);
}

const Region *Memory::at(uint64_t address) const {
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  const Region &region = std::prev(after)->second;
  return address - region.base < region.bytes ? &region : nullptr;
}

Place Memory::place_of(uint64_t address, uint64_t bytes, int *device) const {
  if (const Region *region = at(address)) {
    if (device != nullptr) *device = region->device;
    return bytes <= region->bytes - (address - region->base) ? region->place : Place::NOWHERE;
  }
  for (const NearArena &arena : arenas_)
    if (arena.holds(address)) return Place::NOWHERE;
  return overlaps_pinned(address, bytes) ? Place::NOWHERE : Place::PAGEABLE;
}

bool Memory::overlaps_pinned(uint64_t base, uint64_t bytes) const {
  const auto after = regions_.lower_bound(base + bytes);
  if (after == regions_.begin()) return false;
  const Region &region = std::prev(after)->second;
  return region.place == Place::PINNED && region.base + region.bytes > base;
}

std::vector<Region> Memory::regions() const {
  std::vector<Region> all;
  for (const auto &one : regions_) all.push_back(one.second);
  return all;
}

void Memory::open(bool is_open) {
  for (NearArena &arena : arenas_) arena.open(is_open);
}

Memory::Cell &Memory::cell(uint64_t address) {
  const uint64_t number = address / PAGE_BYTES;
  if (number != last_number_) {
    std::unique_ptr<Page> &page = pages_[number];
    if (page == nullptr) page = std::make_unique<Page>();
    last_number_ = number;
    last_page_ = page.get();
  }
  return (*last_page_)[address % PAGE_BYTES / 8];
}

std::string Memory::access(uint64_t address, uint64_t bytes, bool is_write, size_t stream, uint32_t tick,
                           const Clock &clock) {
  for (uint64_t at = address / 8 * 8; at < address + bytes; at += 8) {
    Cell &word = cell(at);
    if (!word.is_written_before(clock))
      return (is_write ? "written while it is written: " : "read while it is written: ") + hex(at);
    if (!is_write) {
      word.read[stream] = tick;
      continue;
    }
    if (!word.is_read_before(clock)) return "written while it is read: " + hex(at);
    word = Cell{};
    word.writer = static_cast<uint32_t>(stream);
    word.written = tick;
  }
  return "";
}

}  // namespace stand_in
