// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"
#include "distx/connect/tcp/detail/hub.hpp"
#include "distx/connect/tcp/detail/spoke.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// One rank's connections over TCP: rank 0 serves the others with a `Hub`; each of them has a `Spoke`.
class TcpTransport final : public control::ControlTransport {
 public:
  std::unique_ptr<Hub> hub;      ///< rank 0 only
  std::unique_ptr<Spoke> spoke;  ///< the other ranks

  [[nodiscard]] bool root_keeps_time() const noexcept override { return true; }
  void submit(const control::Frame& frame) override { hub ? hub->submit(frame) : spoke->submit(frame); }
  void leave(bool unwinding, bool in_error, const Timeout& deadline) override {
    submit(control::FrameWriter(control::FrameKind::leave).number(unwinding ? 1 : 0).finish());
    close(in_error ? Timeout(Hub::after_error) : deadline);
  }
  /// Waits until the other side has received everything, and ends the connections.
  void close(const Timeout& limit) { hub ? hub->leave(limit) : spoke->leave(Hub::after_error); }
  /// A frame has a few more.
  [[nodiscard]] std::size_t most_bytes() const noexcept override { return control::most_frame_bytes - 4096; }
};

using control::ControlGroup;

/// The rank, the size, and the conditions under which a rank joins.
struct JoinTerms {
  int rank = 0;
  int size = 1;
  Timeout deadline = default_deadline;
  std::string token;

  [[nodiscard]] ErrorContext where() const noexcept {
    return {.operation = "connect", .backend = "tcp", .rank = rank, .size = size};
  }
};

/// Returns a rank's group once all ranks have joined; or that of a process that joins a running job, once the ranks of
/// the job have called `grow`. Blocks until then.
/// @param job  the running job, for messages; empty if it is not one
/// @param deadline  of the call, which may have begun before
[[nodiscard]] inline std::shared_ptr<ControlGroup> await_group(const JoinTerms& terms,
                                                               std::shared_ptr<TcpTransport> transport,
                                                               const Deadline& deadline, const std::string& job = {}) {
  const auto context = terms.where();
  // Rank 0 keeps the deadline of ranks that join together, and names the missing ones.
  const auto end = deadline.unlimited() || !job.empty() ? deadline.end() : deadline.end() + std::chrono::seconds(1);
  const std::string after = "timed out after " + terms.deadline.to_string() + ": ";
  try {
    auto next = transport->inbox.await_next(end, context);
    if (!next && job.empty()) throw TimeoutError(after + "rank 0 does not answer", context);
    if (!next)
      throw ConnectError(after + job + " has not admitted this process: its ranks must call grow() from time to time",
                         context);
    if (job.empty() && next->processes.size() != static_cast<std::size_t>(terms.size))
      throw ConnectError("rank 0 welcomes " + std::to_string(next->processes.size()) + " ranks", context);
    return make_here<ControlGroup>("tcp", terms.deadline, *next, transport);
  } catch (const Error& error) {
    transport->close(Hub::after_error);
    if (!job.empty() && is_rank_loss(error))
      throw ConnectError(job + " ended before it admitted this process", context);
    throw;
  }
}
/// Returns rank 0's group.
[[nodiscard]] inline std::shared_ptr<ControlGroup> serve(const JoinTerms& terms, Listener listener,
                                                         const Deadline& deadline) {
  auto transport = std::make_shared<TcpTransport>();
  transport->hub = std::make_unique<Hub>(std::move(listener), terms.token, terms.size, terms.deadline, deadline,
                                         posix::this_process(), transport->inbox, terms.where());
  return await_group(terms, std::move(transport), deadline);
}
/// Returns the group of another rank, or of a process that joins a running job, which has connected.
[[nodiscard]] inline std::shared_ptr<ControlGroup> join(const JoinTerms& terms, ProvenSocket root,
                                                        const Deadline& deadline) {
  const bool is_running = terms.size == 0;
  const auto address = root.endpoint.to_string();
  const auto name = is_running ? "rank 0" : control::name_of(0, terms.size);
  auto transport = std::make_shared<TcpTransport>();
  transport->spoke = std::make_unique<Spoke>(std::move(root.socket), transport->inbox,
                                             name + " (at " + address + ") exited unexpectedly", terms.where());
  const auto left =
      deadline.unlimited() ? control::no_limit : control::milliseconds_of(deadline.end() - Deadline::clock::now());
  control::FrameWriter hello(control::FrameKind::hello);
  hello.number(static_cast<std::uint64_t>(terms.rank)).number(static_cast<std::uint64_t>(terms.size));
  hello.number(control::milliseconds_of(terms.deadline)).number(left);
  control::write_process(hello, posix::this_process());
  transport->submit(hello.finish());
  return await_group(terms, std::move(transport), deadline, is_running ? "the job at " + address : "");
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
