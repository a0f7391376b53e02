// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/suite.hpp"
#include "conformance/threads.hpp"
#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/paced.hpp"
#include "distx/comm/decorators/traced.hpp"

namespace {

/// Everything at once: what one of them lost, this would lack.
class Nested : public distx::Metered<distx::Traced<distx::Paced<distx::ThreadCommunicator>>> {
  using base = distx::Metered<distx::Traced<distx::Paced<distx::ThreadCommunicator>>>;

 public:
  explicit Nested(distx::ThreadCommunicator comm)
      : Nested(base(distx::Traced(distx::Paced(std::move(comm), {.latency = std::chrono::nanoseconds(1)})))) {}
  explicit Nested(base comm) : base(std::move(comm)) {}
  [[nodiscard]] Nested share() const { return Nested(base::share()); }
  [[nodiscard]] Nested split(int color, int key) { return Nested(base::split(color, key)); }
};

}  // namespace

DISTX_CONFORMANCE(conformance::ThreadRanks<distx::Metered<distx::ThreadCommunicator>>);
DISTX_CONFORMANCE(conformance::ThreadRanks<distx::Traced<distx::ThreadCommunicator>>);
DISTX_CONFORMANCE(conformance::ThreadRanks<Nested>);
