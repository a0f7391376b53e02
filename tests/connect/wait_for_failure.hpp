// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>

#include "distx/connect/failure_channel.hpp"
#include "distx/core/detail/wait.hpp"

namespace test {

/// Returns the reason published for an identity, after half a minute that there was none.
inline std::string wait_for(distx::FailureChannel& channel, std::uint64_t identity) {
  std::string reason = "nothing was published";
  distx::detail::wait_until(
      std::chrono::seconds(30),
      [&] {
        const auto published = channel.poll(identity);
        if (published) reason = *published;
        return published.has_value();
      },
      [] { return false; });
  return reason;
}

}  // namespace test
