// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <string>

#include "data/augment.hpp"
#include "data/digits_csv.hpp"
#include "data/synthetic_digits.hpp"

namespace examples {

/// Returns the file that tools/digits writes, in the build folder that contains this program.
inline std::filesystem::path digits_beside(const char* program) {
  std::error_code without_proc;
  auto path = std::filesystem::read_symlink("/proc/self/exe", without_proc);
  if (without_proc) path = program;
  return (path.parent_path() / "../data/digits.csv.gz").lexically_normal();
}

/// Returns the digits of a file (if empty, the one in the build folder) or generated ones, with shifted copies. A fifth
/// is held out.
/// @param choices the alternatives that the message names if the file does not exist
/// @throws distx::DataError
inline SplitDigits small_digits(bool synthetic, const std::string& file, const char* program, const char* choices) {
  const std::filesystem::path path = file.empty() ? digits_beside(program) : std::filesystem::path(file);
  if (!synthetic && file.empty() && !std::filesystem::exists(path))
    throw distx::DataError(path.string() + " does not exist: fetch it with tools/digits, or choose " + choices);
  // 8 × 8 pixels: enlarged for kernels of 5 × 5.
  auto split = split_held_out(synthetic ? synthetic_digits(1797, 1) : enlarge(read_digits_csv(path), 2), 0.2, 1);
  return {with_shifted_copies(split.training), std::move(split.held_out)};
}

}  // namespace examples
