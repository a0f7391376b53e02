// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <fstream>
#include <stdexcept>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "timing/row.hpp"

namespace timing {

inline void print_head(Operation operation, bool in_place, int ranks) {
  fmt::print("\n# {} on {} ranks, {}{}\n{:>10} {:>10} {:>8}  {:<14} {:<12} {:>12} {:>12} {:>9} {:>9} {:>7}\n",
             name_of(operation), ranks, in_place ? "in place" : "not in place",
             operation == Operation::send_recv ? ", each to the next" : "", "size", "count", "type", "backend",
             "memory", "time us", "best us", "alg GB/s", "bus GB/s", "errors");
}

inline void print(const Row& row) {
  fmt::print("{:>10} {:>10} {:>8}  {:<14} {:<12} {:>12.2f} {:>12.2f} {:>9.2f} {:>9.2f} {:>7}\n", row.bytes,
             row.bytes / sizeof(float), "float32", row.backend, row.memory, row.time_us, row.best_us, row.algbw_gbs,
             row.busbw_gbs, row.errors);
  std::fflush(stdout);
}

/// @throws std::runtime_error where the file cannot be written
inline void write_json(const std::vector<Row>& rows, const std::string& path) {
  auto list = nlohmann::json::array();
  for (const Row& row : rows)
    list.push_back({{"operation", row.operation},
                    {"backend", row.backend},
                    {"memory", row.memory},
                    {"bytes", row.bytes},
                    {"count", row.bytes / sizeof(float)},
                    {"type", "float32"},
                    {"in_place", row.in_place},
                    {"ranks", row.ranks},
                    {"rounds", row.rounds},
                    {"time_us", row.time_us},
                    {"best_us", row.best_us},
                    {"algbw_gbs", row.algbw_gbs},
                    {"busbw_gbs", row.busbw_gbs},
                    {"errors", row.errors}});
  std::ofstream file(path);
  file << list.dump(1) << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path + ": name a file in a folder that exists with --json");
}

}  // namespace timing
