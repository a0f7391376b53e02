// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <thread>

#include "distx/connect/control/group.hpp"
#include "distx/connect/tcp/detail/connection.hpp"
#include "distx/core/detail/start_thread.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// One rank's connections over TCP, served by a thread: rank 0 has a `Hub`; each of the others has a `Spoke`.
class TcpTransport : public control::ControlTransport {
 public:
  /// How long ranks that join later are still notified of an error, and leaving ranks are waited for after one.
  static constexpr std::chrono::seconds after_error{2};

  [[nodiscard]] bool root_keeps_time() const noexcept override { return true; }
  /// A frame has a few more.
  [[nodiscard]] std::size_t most_bytes() const noexcept override { return control::most_frame_bytes - 4096; }
  void leave(bool unwinding, bool in_error, const Timeout& deadline) override {
    submit(control::FrameWriter(control::FrameKind::leave).number(unwinding ? 1 : 0).finish());
    close(in_error ? Timeout(after_error) : deadline);
  }
  /// Waits until the other side has received everything, up to the limit, and ends the connections.
  virtual void close(const Timeout& limit) = 0;

 protected:
  explicit TcpTransport(const ErrorContext& context) : wake_(context) {}

  /// Ends the thread. Called before what it uses is destroyed.
  void stop() {
    stopped_ = true;
    wake_.wake();
    if (thread_.joinable()) thread_.join();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  WakeEvent wake_;
  std::atomic<bool> stopped_{false};
  std::jthread thread_;
};

/// The rank, the size, and the conditions under which a rank joins.
struct JoinTerms {
  int rank = 0;
  int size = 1;  ///< 0 for a process that joins a running job
  Timeout deadline = default_deadline;
  std::string token;

  [[nodiscard]] ErrorContext where() const noexcept {
    return {.operation = "connect", .backend = "tcp", .rank = size > 0 ? rank : -1, .size = size};
  }
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
