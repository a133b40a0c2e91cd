// Faults for test builds, with which the tests prove that they detect one. Empty in every other build.
#pragma once

#include <vector>

#include "plan.hpp"

namespace ax {

#ifndef AX_PLANT_FAULT
inline void plant_fault(std::vector<Piece> &) {}
#elif AX_PLANT_FAULT == 1  // drops a copy
inline void plant_fault(std::vector<Piece> &pieces) {
  if (!pieces.empty()) pieces.pop_back();
}
#elif AX_PLANT_FAULT == 2  // makes one copy twice, the second time in the place of another
inline void plant_fault(std::vector<Piece> &pieces) {
  if (pieces.size() > 1 && pieces.front().bytes == pieces.back().bytes) pieces.back().source = pieces.front().source;
}
#elif AX_PLANT_FAULT == 3  // shifts a copy by one word
inline void plant_fault(std::vector<Piece> &pieces) {
  if (pieces.empty()) return;
  pieces.back().source += AX_ALIGNMENT;
  pieces.back().bytes -= AX_ALIGNMENT;
}
#else
#error "AX_PLANT_FAULT is 1, 2 or 3"
#endif

}  // namespace ax
