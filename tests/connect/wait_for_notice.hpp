// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>

#include "distx/connect/notices.hpp"
#include "distx/core/wait.hpp"

namespace test {

/// Waits until a notice arrives: its words, or that there were none in half a minute.
inline std::string wait_for(distx::Notices& notices, std::uint64_t identity) {
  std::string words = "nothing was heard";
  distx::detail::wait_until(
      std::chrono::seconds(30),
      [&] {
        const auto heard = notices.heard(identity);
        if (heard) words = *heard;
        return heard.has_value();
      },
      [] { return false; });
  return words;
}

}  // namespace test
