// Calibration: times every strategy for each class of the table, on this machine and its memory.
#pragma once

#include "backend.hpp"

namespace ax {

int32_t calibrate(Backend &backend, ax_table &table, ax_fault &fault);

}  // namespace ax
