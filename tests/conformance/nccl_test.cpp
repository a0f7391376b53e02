// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranks are processes started by tools/ranks, or otherwise threads, with one GPU each.
#include <algorithm>
#include <cstdlib>

#include "conformance/backend.hpp"
#include "conformance/staged.hpp"
#include "distx/file.hpp"
#include "distx/nccl.hpp"

namespace {

conformance::Backend::Any staged(distx::NcclCommunicator comm) {
  return conformance::Backend::Any(conformance::Staged(std::move(comm)));
}

distx::NcclOptions options(distx::Timeout deadline) {
  const distx::Timeout::duration longest = std::chrono::minutes(2);
  return {.deadline = std::min(deadline.limit(), longest), .rounding = distx::NcclRounding::once};
}

}  // namespace

conformance::Backend conformance::backend() {
  if (std::getenv("DISTX_FILE") != nullptr)
    return {
        false,
        false,
        [](const auto& body) {
          static distx::AnyConnector connector = distx::connect();
          distx::cuda::pick_device(connector, {.share = true});
          body([](distx::Timeout deadline) { return staged(distx::NcclCommunicator(connector, options(deadline))); });
        },
        false,
        false,
        true,
        false,
        false};  // a process that is forked cannot use CUDA
  return {false,
          true,
          [](const auto& body) {
            for (const int ranks : {1, 2, 3, 4, 7}) {
              if (ranks > distx::cuda::device_count()) break;
              distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
                distx::cuda::pick_device(connector);
                body([&](distx::Timeout deadline) {
                  return staged(distx::NcclCommunicator(connector, options(deadline)));
                });
              });
            }
          },
          false,
          false,
          true,
          false,
          false};
}
