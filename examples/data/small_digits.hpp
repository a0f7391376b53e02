// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <string>

#include "data/augment.hpp"
#include "data/digits_csv.hpp"
#include "data/synthetic_digits.hpp"

namespace examples {

/// Where tools/digits puts the real digits: in the build folder that this program lies in.
inline std::filesystem::path digits_beside(const char* program) {
  std::error_code without_proc;
  auto path = std::filesystem::read_symlink("/proc/self/exe", without_proc);
  if (without_proc) path = program;
  return (path.parent_path() / "../data/digits.csv.gz").lexically_normal();
}

/// As many digits as scikit-learn has, and shifted copies, for there are few: drawn ones, or those of a file, which
/// without a name is the one beside the program. A fifth is held out.
/// @param choices what else there is to choose, for the sentence where that file is not there
/// @throws distx::DataError
inline SplitDigits small_digits(bool synthetic, const std::string& file, const char* program, const char* choices) {
  const std::filesystem::path path = file.empty() ? digits_beside(program) : std::filesystem::path(file);
  if (!synthetic && file.empty() && !std::filesystem::exists(path))
    throw distx::DataError(path.string() + " is not there: fetch it with tools/digits, or choose " + choices);
  // 8 × 8 pixels: enlarged for kernels of 5 × 5.
  auto split = split_held_out(synthetic ? synthetic_digits(1797, 1) : enlarge(read_digits_csv(path), 2), 0.2, 1);
  return {with_shifted_copies(split.training), std::move(split.held_out)};
}

}  // namespace examples
