// expect: distx::ref: a weight and its gradient must be writable arrays of float, double, bfloat16 or float16
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void lend(std::vector<distx::float8_e5m2>& short_ones, std::vector<float>& ones) {
#ifndef DISTX_POSITIVE
  const auto refused = distx::ref("short", short_ones, short_ones);
#endif
  const auto lent = distx::ref("ones", ones, ones);
}
