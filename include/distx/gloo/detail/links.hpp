// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "distx/comm/messages/message_backend.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/core/detail/watch_thread.hpp"
#include "distx/gloo/detail/broken_pipe_guard.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A random number that only the two ranks of a connection know. A rank receives it first, which no stranger can send.
using GlooNonce = std::array<std::uint32_t, 4>;

/// The address at which a rank listens for one other rank. Trivially copyable, so that ranks can gather it.
struct GlooAddress {
  std::uint32_t bytes = 0;
  char data[::gloo::transport::Address::kMaxByteSize] = {};
  GlooNonce nonce{};
};

/// The slot of the nonces, which is that of no queue and stage: see tag_of.
inline constexpr std::uint64_t gloo_nonce_slot = 15;

/// Returns a random number for a new communicator, which no other one of its connector has.
[[nodiscard]] inline std::uint64_t new_gloo_identity() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

/// Returns a device, whose thread inherits what is set here: it blocks SIGPIPE, and does not preempt the threads that
/// wake it. Gloo's thread polls a connection that another thread is writing to, so if it preempted that thread, it
/// would poll until it is preempted itself.
[[nodiscard]] inline std::shared_ptr<::gloo::transport::Device> new_gloo_device(
    const ::gloo::transport::tcp::attr& where) {
  const auto make = [&] {
    const BrokenPipeGuard guard;
    const sched_param none{};
    ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
    return ::gloo::transport::tcp::CreateDevice(where);
  };
  return std::async(std::launch::async, make).get();
}

/// Whether devices listen themselves, and so know which of two processes connects; of older ones each connection
/// listens.
template <class Device = ::gloo::transport::tcp::Device>
concept gloo_devices_listen =
    requires(const Device& device, const ::gloo::transport::tcp::Address& to) { device.isInitiator(to, to); };

/// Returns a device for a communicator.
///
/// Newer devices listen, for all their connections, and a connection whose first bytes are still to come owns the
/// device's thread, so that a stranger that ends after the device would make the thread join itself, which ends the
/// process. A process therefore has one such device per address, which it keeps.
[[nodiscard]] inline std::shared_ptr<::gloo::transport::Device> gloo_device(const ::gloo::transport::tcp::attr& where) {
  if constexpr (!gloo_devices_listen<>) return new_gloo_device(where);
  using Devices = std::map<std::pair<unsigned, std::string>, std::shared_ptr<::gloo::transport::Device>>;
  static std::mutex mutex;
  static auto& kept = *new Devices;  // by the process, since a forked one has no thread of its parent's
  const std::lock_guard lock(mutex);
  auto& device = kept[{forks.load(), where.hostname}];
  if (!device) device = new_gloo_device(where);
  return device;
}

/// One transfer to or from one rank; it is complete, or none, without a buffer.
struct GlooTransfer {
  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
  int other = 0;
  bool receives = false;
  std::uint64_t slot = 0;
};

/// One rank's TCP connections to the other ranks of a communicator. All members may be called by several threads.
///
/// Gloo accesses the memory of a transfer until the transfer's buffer is destroyed. It reports a connection that breaks
/// to all that wait for it, so revoking closes the connections; the reason goes through the failure channel. It does
/// not wake the waits for transfers that were in progress when their connection broke, so a thread looks at waits that
/// last.
class GlooLinks {
 public:
  using Device = std::shared_ptr<::gloo::transport::Device>;
  using Request = GlooTransfer;

  /// The time between two looks at the waits of all communicators of the process.
  static constexpr std::chrono::milliseconds interval{20};

  GlooLinks(Device device, const RankOf& self, const Timeout& deadline, std::shared_ptr<FailureChannel> channel,
            std::uint64_t identity)
      : self_(self),
        deadline_(deadline),
        channel_(std::move(channel)),
        identity_(identity),
        device_(std::move(device)),
        context_(device_->createContext(self.rank, self.size)) {
    // Gloo waits five times as long for a connection, and no longer than the limit that is passed for anything else.
    context_->setTimeout(milliseconds_until(Deadline(patience())) / 5 + std::chrono::milliseconds(1));
    if ((channel_ == nullptr && !warns_) || self.size == 1) return;
    watch_ = WatchThread::shared<GlooLinks>(self.context("GlooCommunicator"));
    watch_->add(this, [this] { return look(), true; });
  }
  ~GlooLinks() {
    if (watch_ != nullptr) watch_->remove(this);
  }

  [[nodiscard]] const RankOf& self() const noexcept { return self_; }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }

  /// Begins to listen; returns `room` addresses, of which number r is for rank r.
  [[nodiscard]] std::vector<GlooAddress> listen(int room) {
    std::vector<GlooAddress> addresses(static_cast<std::size_t>(room));
    std::random_device random;
    for (int other = 0; other < self_.size; ++other) {
      if (other == self_.rank) continue;
      const std::vector<char> bytes = context_->createPair(other)->address().bytes();
      GlooAddress& address = addresses[static_cast<std::size_t>(other)];
      address.bytes = static_cast<std::uint32_t>(bytes.size());
      std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof address.data), address.data);
      std::ranges::generate(address.nonce, std::ref(random));
    }
    return addresses;
  }
  /// Connects to every other rank, and makes sure that it is that rank. Collective.
  /// @param own  what `listen` has returned
  /// @param address_of  returns the address that a rank has for this one
  /// @throws std::exception; what Gloo throws, or that another rank has failed or a stranger has connected
  template <class F>
  void connect(const std::vector<GlooAddress>& own, F&& address_of, const ErrorContext& context) {
    std::string problem;
    const auto for_each_peer = [&](auto&& f) {
      for (int other = 0; other < self_.size; ++other)
        if (other != self_.rank) f(other, own[static_cast<std::size_t>(other)], address_of(other));
    };
    connecting_ = true;
    for_each_peer([&](int other, const GlooAddress&, const GlooAddress& address) {
      try {
        if (!revoked()) context_->getPair(other)->connect({address.data, address.data + address.bytes});
      } catch (const std::exception& error) {  // the other ranks wait for this one
        problem = error.what();
      }
    });
    connecting_ = false;
    if (revoked()) problem = "another rank has failed";
    if (!problem.empty()) throw std::runtime_error(problem);
    std::vector<GlooNonce> received(own.size());
    std::vector<GlooTransfer> transfers;  // last: destroyed before the memory that Gloo accesses
    for_each_peer([&](int other, const GlooAddress&, const GlooAddress& address) {
      for (const GlooNonce* const nonce : {&std::as_const(received[static_cast<std::size_t>(other)]), &address.nonce})
        transfers.push_back(begin(nonce != &address.nonce, other, gloo_nonce_slot,
                                  std::as_bytes(std::span(*nonce)).data(), sizeof *nonce, context));
    });
    wait(transfers, patience(), context);
    for_each_peer([&](int other, const GlooAddress& mine, const GlooAddress&) {
      if (received[static_cast<std::size_t>(other)] != mine.nonce)
        throw std::runtime_error("a stranger has connected instead of rank " + std::to_string(other));
    });
  }

  /// Begins a transfer of `bytes` bytes to or from rank `other`; transfers of one slot keep their order.
  [[nodiscard]] GlooTransfer begin(bool receives, int other, std::uint64_t slot, const std::byte* data,
                                   std::size_t bytes, const ErrorContext& context) {
    check_usable(context);
    try {
      const BrokenPipeGuard guard;
      GlooTransfer made{context_->createUnboundBuffer(const_cast<std::byte*>(data), bytes), other, receives, slot};
      if (receives)
        made.buffer->recv(other, slot);
      else
        made.buffer->send(other, slot);
      return made;
    } catch (const std::exception& error) {
      throw_broken(other, error.what(), context);
    }
  }
  [[nodiscard]] GlooTransfer send(int to, std::uint64_t slot, const std::byte* data, std::size_t bytes,
                                  const ErrorContext& context) {
    return begin(false, to, slot, data, bytes, context);
  }
  [[nodiscard]] GlooTransfer receive(int from, std::uint64_t slot, std::byte* data, std::size_t bytes,
                                     const ErrorContext& context) {
    return begin(true, from, slot, data, bytes, context);
  }
  /// Waits for transfers.
  /// @throws TimeoutError that names the ranks; RevokedError; RankFailure if a connection breaks without a reason
  void wait(std::span<GlooTransfer> transfers, const Timeout& limit, const ErrorContext& context) {
    const Deadline deadline(limit);
    const char* what = "";
    const auto overdue = [&](const std::vector<int>& missing) { return overdue_text(limit, missing, what); };
    EarlyWarning warning(limit);
    int awaited = 0;  // the only one that is known to be missing: Gloo cannot be asked whether a transfer is complete
    const auto warn = [&] { warning(context, [&] { return overdue({awaited}); }); };
    std::vector<int> missing;
    for (GlooTransfer& transfer : transfers) {
      if (transfer.buffer == nullptr) continue;
      awaited = transfer.other;
      if (missing.empty()) what = omission(transfer.slot, transfer.receives);
      const auto problem = wait_for(transfer, deadline, context, std::ref(warn));
      if (!problem) transfer.buffer.reset();
      if (!problem) continue;
      if (!deadline.expired() || revoked()) throw_broken(transfer.other, *problem, context);
      // Gloo has closed all connections now, so the waits for the other transfers end at once.
      if (std::find(missing.begin(), missing.end(), transfer.other) == missing.end()) missing.push_back(transfer.other);
    }
    if (!missing.empty()) throw TimeoutError(overdue(missing), context);
  }

  /// Connects the ranks of a group. Collective over ranks that include these, each of which is in one such group.
  ///
  /// A stranger can connect to a port at which a rank listens. Then that rank does not receive the nonce, and all ranks
  /// listen again, on new ports.
  /// @param context  of the call, with this rank's number among all of these ranks
  /// @param make  returns GlooLinks of the group
  /// @param number_of  returns the number, among all of these ranks, of a rank of the group
  /// @param gather  gathers addresses of all of these ranks: `gather(mine, all)`
  /// @throws ConnectError on every rank if one cannot listen or cannot reach another
  template <class Make, class NumberOf, class Gather>
  [[nodiscard]] static std::unique_ptr<GlooLinks> connected(const ErrorContext& context, const Timeout& limit,
                                                            Make&& make, NumberOf&& number_of, Gather&& gather) {
    constexpr int most_attempts = 5;
    const auto room = static_cast<std::size_t>(context.size);
    const Deadline deadline(limit);
    std::unique_ptr<GlooLinks> links;
    std::vector<GlooAddress> mine, all(room * room), outcomes(room);
    for (int attempt = 1;; ++attempt) {
      // Every rank tries every step, so that all throw the same error.
      const auto on_every_rank = [&](const std::string& what, auto&& step) {
        GlooAddress outcome;
        try {
          step();
        } catch (const std::exception& error) {
          outcome.data[std::string_view(error.what()).copy(outcome.data, sizeof outcome.data - 1)] = '\0';
          links.reset();  // ends the waits of the others
        }
        outcome.bytes = deadline.expired() ? 1 : 0;
        gather(std::span<const GlooAddress>(&outcome, 1), std::span(outcomes));
        const auto failed = std::ranges::find_if(outcomes, [](const auto& each) { return each.data[0] != '\0'; });
        if (failed == outcomes.end()) return true;
        if (attempt < most_attempts && std::ranges::all_of(outcomes, [](const auto& each) { return each.bytes == 0; }))
          return false;
        gather(std::span<const GlooAddress>(&outcome, 1), std::span(outcomes));  // throws if a rank has failed
        throw ConnectError("rank " + std::to_string(failed - outcomes.begin()) + " cannot " + what + " (" +
                               failed->data +
                               "): set GlooOptions::address to an address of its host that the others reach, on a "
                               "network without strangers",
                           context);
      };
      if (!on_every_rank("listen", [&] { mine = (links = make())->listen(context.size); })) continue;
      gather(std::span<const GlooAddress>(mine), std::span(all));
      const auto address_of = [&](int other) -> const auto& {
        return all[static_cast<std::size_t>(number_of(other)) * room + static_cast<std::size_t>(links->self().rank)];
      };
      if (on_every_rank("connect", [&] { links->connect(mine, address_of, context); })) return links;
    }
  }
  /// Returns the links of a group of these ranks. Collective over all of them. See `connected`.
  template <class Backend>
  [[nodiscard]] std::unique_ptr<GlooLinks> split(const RankOf& part, const std::vector<SplitRequest>& group,
                                                 Backend& backend, const std::source_location& location) {
    const auto gather = [&](auto mine, auto all) { backend.execute(AllGather<GlooAddress>{mine, all, {}, location}); };
    const auto number_of = [&](int other) { return group[static_cast<std::size_t>(other)].rank; };
    const std::uint64_t words[]{identity_, ++splits_, static_cast<std::uint64_t>(group.front().rank)};
    const auto make = [&] {
      return std::make_unique<GlooLinks>(device_, part, deadline_, channel_, fnv1a(std::as_bytes(std::span(words))));
    };
    return connected(self_.context("split", location), deadline_, make, number_of, gather);
  }

  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire); }
  /// @throws what has revoked the communicator
  void check_usable(const ErrorContext& context) {
    if (!revoked()) return;
    const std::lock_guard lock(mutex_);
    reason_.raise(context);
  }
  /// Ends the waits of all ranks.
  void revoke(const std::string& reason) noexcept try {
    auto published = RevocationReason::parse(reason).by(self_.rank);
    published.thrown = true;  // this rank throws the error itself, even if a peer was first
    if (!store(published)) return;
    if (channel_ != nullptr) channel_->publish(identity_, published.published());
    close_all();
  } catch (const std::exception&) {
    // Without memory for the reason; the other ranks have their own deadlines.
  }

 private:
  /// Returns how long this rank waits for another one's connection and nonce, so that all can try once more.
  [[nodiscard]] Timeout patience() const noexcept {
    return std::min<Timeout::duration>(std::chrono::seconds(10), deadline_.limit() / 2);
  }
  /// Gloo has no unlimited waits; a year is as good.
  [[nodiscard]] static std::chrono::milliseconds milliseconds_until(const Deadline& deadline) {
    constexpr std::chrono::hours year(24 * 365);
    if (deadline.unlimited()) return year;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.end() - Deadline::clock::now());
    return std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(0), year);
  }
  /// Returns nothing once the transfer is complete, or Gloo's message, empty if a revocation has ended the wait.
  /// @param warn  called from time to time
  [[nodiscard]] std::optional<std::string> wait_for(GlooTransfer& transfer, const Deadline& deadline,
                                                    const ErrorContext& context, const std::function<void()>& warn) {
    auto* const buffer = transfer.buffer.get();
    {
      const std::lock_guard lock(mutex_);
      if (revoked()) reason_.raise(context);
      waits_.push_back({buffer, ++waits_begun_, &warn});
    }
    std::optional<std::string> problem;
    try {
      const auto limit = milliseconds_until(deadline);
      if (!(transfer.receives ? buffer->waitRecv(limit) : buffer->waitSend(limit))) problem.emplace();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::lock_guard lock(mutex_);
    std::erase_if(waits_, [&](const Wait& wait) { return wait.buffer == buffer; });
    return problem;
  }
  /// Warns of waits that last, and ends them if a rank has failed, once one has lasted since the last look.
  void look() noexcept try {
    {
      const std::lock_guard lock(mutex_);
      if (revoked() || (waits_.empty() && !connecting_)) return;
      for (const Wait& wait : waits_)
        if (warns_) (*wait.warn)();
      if (!connecting_ && std::exchange(looked_at_, waits_.front().number) != waits_.front().number) return;
    }
    const auto reason = channel_ == nullptr ? std::nullopt : channel_->poll(identity_);
    if (!reason) return;
    store(RevocationReason::parse(*reason));
    if (connecting_) close_all();
  } catch (const std::exception&) {  // out of memory; the waits have their deadlines
  }
  /// Revokes on this rank; returns whether it was not revoked before.
  bool store(RevocationReason reason) {
    const std::lock_guard lock(mutex_);
    reason_.thrown = reason_.thrown || reason.thrown;
    if (revoked()) return false;
    reason_ = std::move(reason);
    revoked_.store(true, std::memory_order_release);
    for (const Wait& wait : waits_) {
      wait.buffer->abortWaitRecv();
      wait.buffer->abortWaitSend();
    }
    return true;
  }
  /// Throws why the communicator was revoked, if a rank has published that or does so within a second: a rank publishes
  /// its reason before it closes its connections, and a rank that was killed gives none.
  [[noreturn]] void throw_broken(int other, const std::string& problem, const ErrorContext& context) {
    check_usable(context);
    const Deadline grace(channel_ == nullptr ? Timeout(std::chrono::seconds(0)) : std::chrono::seconds(1));
    for (; !grace.expired(); std::this_thread::sleep_for(std::chrono::milliseconds(1)))
      if (const auto reason = channel_->poll(identity_)) {
        store(RevocationReason::parse(*reason));
        check_usable(context);
      }
    throw RankFailure("the connection to rank " + std::to_string(other) + " is broken, so that rank has ended or the " +
                          "network has failed (" + problem + ")",
                      other, nullptr, context);
  }

  void close_all() {
    for (int other = 0; other < self_.size; ++other)
      if (other != self_.rank) context_->getPair(other)->close();
  }

  struct Wait {
    ::gloo::transport::UnboundBuffer* buffer = nullptr;
    std::uint64_t number = 0;
    const std::function<void()>* warn = nullptr;
  };

  RankOf self_;
  Timeout deadline_;
  std::shared_ptr<FailureChannel> channel_;
  std::uint64_t identity_;
  bool warns_ = EarlyWarning::is_on();
  Device device_;
  mutable std::mutex mutex_;
  std::atomic<bool> connecting_{false};
  std::atomic<bool> revoked_{false};  ///< set once, after `reason_`
  RevocationReason reason_;
  std::vector<Wait> waits_;  ///< in the order in which they began
  std::uint64_t waits_begun_ = 0, looked_at_ = 0, splits_ = 0;
  std::shared_ptr<WatchThread> watch_;
  std::shared_ptr<::gloo::transport::Context> context_;
};

}  // namespace distx::inline DISTX_ABI::detail
