// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <thread>

#include "distx/connect/tcp/detail/handshake.hpp"
#include "distx/connect/tcp/detail/transport.hpp"
#include "distx/core/detail/early_warning.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Where rank 0 listens, and the token that it knows.
struct RootAddress {
  Endpoint endpoint;
  std::string token;
  bool is_certain = true;  ///< false if it may be that of an earlier job
};

/// Returns the address of rank 0 if it is known now; called before each attempt to connect. Blocks until the given time
/// at most.
using Locate = std::function<std::optional<RootAddress>(Deadline::clock::time_point)>;

/// A socket to rank 0 over which both sides have proven the token.
struct ProvenSocket {
  Descriptor socket;
  Endpoint endpoint;
};

/// Connects to rank 0: tries again, with growing pauses, until the deadline.
/// @throws ConnectError if another attempt would not help; TimeoutError at the deadline
[[nodiscard]] inline ProvenSocket connect_to_root(const Locate& locate, const JoinTerms& terms,
                                                  const Deadline& deadline) {
  using std::chrono::milliseconds;
  JoinProblem problem{"rank 0 has not published its address"};
  std::string where;
  // While strangers flood rank 0, the system drops most attempts; its own pauses between them grow too fast.
  milliseconds patience(250);
  EarlyWarning warning(terms.deadline);
  const auto overdue = [&] {
    return "timed out after " + terms.deadline.to_string() + ": cannot join rank 0" + where + " (" + problem.text +
           "); start rank 0, or correct the address";
  };
  const auto attempt = [&](Deadline::clock::time_point end) -> std::optional<ProvenSocket> {
    const auto root = locate(end);
    if (!root) return std::nullopt;
    where = " at " + root->endpoint.to_string();
    const auto [addresses, unresolved] = resolve(root->endpoint);
    if (addresses.empty()) problem = {unresolved};
    for (const auto& address : addresses) {
      auto socket = open_socket(address);
      const auto connected_by = std::min(end, Deadline::clock::now() + patience);
      if (const int code = socket ? connect_socket(socket, address, connected_by) : errno; code != 0) {
        if (code == ETIMEDOUT) patience = std::min(2 * patience, milliseconds(2000));
        problem = {system_message(code)};
        continue;
      }
      tune(socket.native_handle());
      if (auto found = prove_as_rank(socket.native_handle(), root->token, end))
        problem = std::move(*found);
      else
        return ProvenSocket{std::move(socket), root->endpoint};
      problem.is_final = problem.is_final && root->is_certain;
      if (problem.is_final) break;
    }
    return std::nullopt;
  };
  for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(100))) {
    // A process there that does not answer is given up after a while, in case it is not rank 0.
    const auto end = std::min(deadline.end(), Deadline::clock::now() + std::chrono::seconds(10));
    if (auto connected = attempt(end)) return std::move(*connected);
    if (problem.is_final) throw ConnectError("cannot join rank 0" + where + ": " + problem.text, terms.where());
    if (deadline.expired()) throw TimeoutError(overdue(), terms.where());
    warning(terms.where(), overdue);
    std::this_thread::sleep_for(std::min<Deadline::clock::duration>(pause, deadline.end() - Deadline::clock::now()));
  }
}

/// The connection of a rank to rank 0, served by a thread.
class Spoke final : public TcpTransport {
 public:
  Spoke(Descriptor socket, std::string lost, const ErrorContext& context)
      : TcpTransport(context), lost_(std::move(lost)), socket_(std::move(socket)) {
    thread_ = start_thread([this] { run(); }, context);
  }
  ~Spoke() override { stop(); }

  /// Sends a frame. May be called from any thread, and does not block.
  void submit(const control::Frame& frame) override {
    const std::lock_guard lock(mutex_);
    socket_.append(frame);
    socket_.flush();
    if (socket_.has_output()) wake_.wake();
  }
  /// Waits briefly until rank 0 has received everything and has closed the connection.
  void close(const Timeout&) override {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    wake_.wake();
    changed_.wait_until(lock, Deadline(after_error).end(), [&] { return !socket_.is_open(); });
    lock.unlock();
    stop();
  }

 private:
  void run() noexcept try {
    bool shut = false;
    for (;;) {
      pollfd waited[2] = {{wake_.native_handle(), POLLIN, 0}, {-1, 0, 0}};
      {
        const std::lock_guard lock(mutex_);
        if (leaving_ && !shut && !socket_.has_output()) {
          socket_.shut_down();
          shut = true;
        }
        waited[1] = {socket_.native_handle(), socket_.events(), 0};
      }
      ::poll(waited, 2, -1);
      if (stopped_) return;
      const std::lock_guard lock(mutex_);
      if (waited[0].revents != 0) wake_.drain();
      socket_.flush();
      if (waited[1].revents == 0) continue;
      bool open = socket_.receive();
      for (;;) {
        auto [frame, too_long] = socket_.next();
        if (too_long || (frame && !inbox.take(*frame))) open = false;
        if (!frame) break;
      }
      if (open) continue;
      socket_.close();
      inbox.lose(lost_);
      changed_.notify_all();
      return;
    }
  } catch (...) {  // out of memory
    const std::lock_guard lock(mutex_);
    socket_.close();
    inbox.lose("this rank has no memory for the messages of rank 0");
    changed_.notify_all();
  }

  std::string lost_;
  BufferedSocket socket_;
  bool leaving_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
