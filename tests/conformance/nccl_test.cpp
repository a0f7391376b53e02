// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranks are processes started by tools/ranks, or otherwise threads, with one GPU each.
#include <cstdlib>

#include "conformance/backend.hpp"
#include "conformance/staged.hpp"
#include "distx/file.hpp"
#include "distx/nccl.hpp"

namespace {

conformance::Backend::Any staged(distx::NcclCommunicator comm) {
  return conformance::Backend::Any(conformance::Staged(std::move(comm)));
}

distx::NcclOptions options() { return {.deadline = std::chrono::minutes(2), .rounding = distx::NcclRounding::once}; }

}  // namespace

conformance::Backend conformance::backend() {
  if (std::getenv("DISTX_FILE") != nullptr)
    return {false, false,
            [](const auto& body) {
              static distx::AnyConnector connector = distx::connect();
              distx::cuda::pick_device(connector, {.share = true});
              auto comm = staged(distx::NcclCommunicator(connector, options()));
              body(comm);
            },
            false, false};
  return {false, true,
          [](const auto& body) {
            for (const int ranks : {1, 2, 3, 4, 7}) {
              if (ranks > distx::cuda::device_count()) break;
              distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
                distx::cuda::pick_device(connector);
                auto comm = staged(distx::NcclCommunicator(connector, options()));
                body(comm);
              });
            }
          },
          false, false};
}
