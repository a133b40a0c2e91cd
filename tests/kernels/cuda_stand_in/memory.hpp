// The memories of the stand-in: what is allocated where, and who touched which word last.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace stand_in {

// How much of each stream's work is known to be done: one number for each stream. The host is stream 0.
using Clock = std::vector<uint32_t>;
constexpr size_t MOST_STREAMS = 32;

void join(Clock &clock, const Clock &other);

enum class Place { PAGEABLE, PINNED, NEAR, NOWHERE };

struct Region {
  uint64_t base;
  uint64_t bytes;
  Place place;
  int device;          // of near memory
  bool is_registered;  // by cudaHostRegister, else allocated
};

// All near memory of one device, closed to the host but while the device works.
class NearArena {
 public:
  NearArena();
  ~NearArena();
  NearArena(const NearArena &) = delete;
  NearArena &operator=(const NearArena &) = delete;
  uint64_t take(uint64_t bytes);  // never what was taken before, until `clear`
  void clear();
  void open(bool is_open);
  bool holds(uint64_t address) const { return address >= base_ && address < base_ + BYTES; }

 private:
  static constexpr uint64_t BYTES = UINT64_C(64) << 30;
  uint64_t base_;
  uint64_t next_;
  bool is_open_ = false;
};

class Memory {
 public:
  void clear();
  void add(const Region &region) { regions_[region.base] = region; }
  // Empty, or which access of the region the clock does not know.
  std::string unsettled(const Region &region, const Clock &clock) const;
  void remove(uint64_t base);
  const Region *at(uint64_t address) const;
  // The place of a whole range: NOWHERE if it leaves what it begins in, or was freed.
  Place place_of(uint64_t address, uint64_t bytes, int *device = nullptr) const;
  bool overlaps_pinned(uint64_t base, uint64_t bytes) const;
  std::vector<Region> regions() const;
  NearArena &arena(int device) { return arenas_[static_cast<size_t>(device)]; }
  void open(bool is_open);

  // Notes an access; empty, or what it is not ordered with.
  std::string access(uint64_t address, uint64_t bytes, bool is_write, size_t stream, uint32_t tick, const Clock &clock);

 private:
  // The last write of a word, and each stream's last read since.
  struct Cell {
    uint32_t written = 0;
    uint32_t writer = 0;
    std::array<uint32_t, MOST_STREAMS> read{};

    bool is_written_before(const Clock &clock) const { return is_before(writer, written, clock); }
    bool is_read_before(const Clock &clock) const {
      for (size_t stream = 0; stream < MOST_STREAMS; ++stream)
        if (!is_before(stream, read[stream], clock)) return false;
      return true;
    }
    static bool is_before(size_t stream, uint32_t tick, const Clock &clock) {
      return tick == 0 || (stream < clock.size() && tick <= clock[stream]);
    }
  };
  using Page = std::array<Cell, 512>;

  Cell &cell(uint64_t address);

  std::map<uint64_t, Region> regions_;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_number_ = UINT64_MAX;
  Page *last_page_ = nullptr;
  std::array<NearArena, 2> arenas_;
};

}  // namespace stand_in
