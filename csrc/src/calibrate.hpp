// Calibration: times every strategy for each class of the table, on the memory and the machine that will be used.
#pragma once

#include "backend.hpp"

namespace ax {

int32_t calibrate(Backend &backend, ax_table &table, ax_fault &fault);

}  // namespace ax
