// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The library's collectives over messages, on queues in one process.
#include <cstdlib>

#include "conformance/backend.hpp"
#include "conformance/toy_transport.hpp"
#include "sanitized.hpp"

namespace toy {

class QueueCommunicator : public detail::BasicCommunicator<QueueCommunicator, detail::MessageBackend<QueueLinks>> {
  using Base = detail::BasicCommunicator<QueueCommunicator, detail::MessageBackend<QueueLinks>>;
  friend Base;

 public:
  QueueCommunicator(ThreadConnector& connector, Timeout deadline) : Base(connected(connector, deadline)) {}

 private:
  using Base::Base;
  static std::shared_ptr<State> connected(ThreadConnector& connector, Timeout deadline) {
    const auto own = std::make_shared<Queues>();
    const auto queues = *broadcast_value(connector, &own, 0);  // ranks are threads: rank 0's pointer serves all
    connector.barrier();
    return State::make(
        std::make_unique<QueueLinks>(QueueLinks{queues, {connector.rank(), connector.size(), "queues"}, deadline}));
  }
};

}  // namespace toy

conformance::Backend conformance::backend() {
  // Three have slices of unequal sizes; all numbers of ranks take minutes under sanitizers.
  if (DISTX_TESTS_SANITIZED) setenv("DISTX_TEST_RANKS", "3", 0);
  return thread_ranks(
      [](auto& connector, distx::Timeout deadline) { return toy::QueueCommunicator(connector, deadline); });
}
