// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/distx.hpp>

#include "timing/subject.hpp"

namespace timing {

/// A communicator of distx, through the functions that a user calls.
template <distx::Communicator C>
class DistxSubject final : public Subject {
 public:
  DistxSubject(std::string backend, Memory memory, C comm)
      : Subject(std::move(backend), std::move(memory)), comm_(std::move(comm)) {}

  void call(const Case& c, const Buffers& b) override {
    const distx::Span<const float> send(b.send, c.sends());
    const distx::Span<float> receive(b.receive, c.receives());
    switch (c.operation) {
      case Operation::all_reduce:
        return distx::all_reduce(comm_, send, receive, distx::sum);
      case Operation::reduce:
        return distx::reduce(comm_, send, receive, distx::sum, root);
      case Operation::broadcast:
        return distx::broadcast(comm_, receive, root);
      case Operation::all_gather:
        return distx::all_gather(comm_, send, receive);
      case Operation::reduce_scatter:
        return distx::reduce_scatter(comm_, send, receive, distx::sum);
      case Operation::gather:
        return distx::gather(comm_, send, receive, root);
      case Operation::scatter:
        return distx::scatter(comm_, send, receive, root);
      case Operation::all_to_all:
        return distx::all_to_all(comm_, send, receive);
      case Operation::send_recv:
        return distx::send_receive(comm_, send, c.to(), receive, c.from());
    }
  }

 private:
  C comm_;
};

}  // namespace timing
