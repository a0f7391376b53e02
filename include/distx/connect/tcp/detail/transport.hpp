// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"
#include "distx/connect/tcp/detail/hub.hpp"
#include "distx/connect/tcp/detail/spoke.hpp"

namespace distx::detail::tcp {

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

/// Returns a rank's group once all ranks have joined.
/// @param deadline  of the call, which may have begun before
[[nodiscard]] inline std::shared_ptr<ControlGroup> await_ranks(const JoinTerms& terms,
                                                               std::shared_ptr<TcpTransport> link,
                                                               const Deadline& deadline) {
  const auto context = terms.where();
  const Deadline patience =
      deadline.unlimited() ? deadline : Deadline(deadline.end() - Deadline::clock::now() + std::chrono::seconds(1));
  try {
    auto joined = link->inbox.await_welcome(patience.end(), context);
    if (!joined)
      throw TimeoutError("timed out after " + terms.deadline.to_string() + ": rank 0 does not answer", context);
    if (joined->size() != static_cast<std::size_t>(terms.size))
      throw ConnectError("rank 0 welcomes " + std::to_string(joined->size()) + " ranks", context);
    return make_here<ControlGroup>("tcp", terms.deadline, control::NextGroup{terms.rank, std::move(*joined)},
                                   std::move(link));
  } catch (const Error&) {
    link->close(Hub::after_error);
    throw;
  }
}
/// Returns rank 0's group.
[[nodiscard]] inline std::shared_ptr<ControlGroup> serve(const JoinTerms& terms, Listener listener,
                                                         const Deadline& deadline) {
  auto link = std::make_shared<TcpTransport>();
  link->hub = std::make_unique<Hub>(std::move(listener), terms.token, terms.size, terms.deadline, deadline,
                                    posix::this_process(), link->inbox, terms.where());
  return await_ranks(terms, std::move(link), deadline);
}
/// Asks rank 0 to join.
/// @param name  of rank 0
[[nodiscard]] inline std::shared_ptr<TcpTransport> say_hello(const JoinTerms& terms, ProvenSocket root,
                                                             const std::string& name, const Deadline& deadline) {
  auto link = std::make_shared<TcpTransport>();
  link->spoke =
      std::make_unique<Spoke>(std::move(root.socket), link->inbox,
                              name + " (at " + root.endpoint.to_string() + ") exited unexpectedly", terms.where());
  const auto limit = control::milliseconds_of(terms.deadline);
  const auto left =
      deadline.unlimited() ? control::no_limit : control::milliseconds_of(deadline.end() - Deadline::clock::now());
  control::FrameWriter hello(control::FrameKind::hello);
  hello.number(static_cast<std::uint64_t>(terms.rank)).number(static_cast<std::uint64_t>(terms.size));
  hello.number(limit).number(left);
  control::write_process(hello, posix::this_process());
  link->submit(hello.finish());
  return link;
}
/// Returns the group of another rank, which has connected.
[[nodiscard]] inline std::shared_ptr<ControlGroup> join(const JoinTerms& terms, ProvenSocket root,
                                                        const Deadline& deadline) {
  return await_ranks(terms, say_hello(terms, std::move(root), control::name_of(0, terms.size), deadline), deadline);
}
/// Returns the group of a process that joins a running job, to which it has connected. Blocks until its ranks call
/// `grow`.
[[nodiscard]] inline std::shared_ptr<ControlGroup> await_admission(JoinTerms terms, ProvenSocket root,
                                                                   const Deadline& deadline) {
  terms.rank = terms.size = 0;
  const auto context = terms.where();
  const std::string job = "the job at " + root.endpoint.to_string();
  const auto link = say_hello(terms, std::move(root), "rank 0", deadline);
  try {
    const auto next = link->inbox.await_next(deadline.end(), context);
    if (!next)
      throw ConnectError("timed out after " + terms.deadline.to_string() + ": " + job +
                             " has not admitted this process: its ranks must call grow() from time to time",
                         context);
    return make_here<ControlGroup>("tcp", terms.deadline, *next, link);
  } catch (const Error& error) {
    link->close(Hub::after_error);
    if (is_rank_loss(error)) throw ConnectError(job + " ended before it admitted this process", context);
    throw;
  }
}

}  // namespace distx::detail::tcp
