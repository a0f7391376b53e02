// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>

#include "distx/connect/failure_channel.hpp"
#include "distx/core/detail/wait.hpp"

namespace test {

/// Waits until a notice arrives: its words, or that there were none in half a minute.
inline std::string wait_for(distx::FailureChannel& notices, std::uint64_t identity) {
  std::string words = "nothing was heard";
  distx::detail::wait_until(
      std::chrono::seconds(30),
      [&] {
        const auto heard = notices.poll(identity);
        if (heard) words = *heard;
        return heard.has_value();
      },
      [] { return false; });
  return words;
}

}  // namespace test
