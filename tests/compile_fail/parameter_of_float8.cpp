// expect: distx::Parameter: the element type must be float, double, bfloat16, float16 or AnyElement
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

std::size_t make() {
#ifndef DISTX_POSITIVE
  const distx::Parameter<distx::float8_e4m3> short_one("short", 10);
#endif
  const distx::Parameter<distx::bfloat16> one("one", 10);
  return one.size();
}
