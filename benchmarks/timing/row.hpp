// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>

#include "timing/subject.hpp"

namespace timing {

/// The results of one subject at one size.
struct Row {
  std::string operation, backend, memory;
  bool in_place = false;
  int ranks = 1, rounds = 0;
  std::size_t bytes = 0;
  double time_us = 0;  ///< the median
  double best_us = 0;
  double algbw_gbs = 0, busbw_gbs = 0;
  std::uint64_t errors = 0;
};

inline Row row_of(const Case& c, const Subject& subject, double seconds, double best, int rounds,
                  std::uint64_t errors) {
  const double bandwidth = seconds > 0 ? static_cast<double>(c.bytes()) / seconds / 1e9 : 0;
  return {std::string(name_of(c.operation)),
          subject.backend(),
          subject.memory().name,
          c.in_place,
          c.ranks,
          rounds,
          c.bytes(),
          seconds * 1e6,
          best * 1e6,
          bandwidth,
          bandwidth * bus_factor(c.operation, c.ranks),
          errors};
}

}  // namespace timing
