// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <map>

#include "distx/comm/messages/message_backend.hpp"

// A complete transport for the library's collectives over messages, which docs/extending.md explains.
namespace toy {
using namespace distx;
using calls::RankOf;
using Number = std::tuple<int, int, std::uint64_t, std::size_t>;  ///< sender, receiver, tag, and how many before
/// The messages between ranks that are threads.
struct Queues {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Number, std::size_t> started;  ///< of number 0 for sends, 1 for receives
  std::map<Number, std::vector<std::byte>> sent;
  std::optional<detail::RevocationReason> revoked;
};
struct QueueLinks {
  struct Request {  ///< a send is complete once it is received
    std::optional<Number> number{};
    std::byte* target = nullptr;  ///< of a receive
  };
  const RankOf& self() const { return rank; }
  const Timeout& deadline() const { return limit; }
  Request send(int to, std::uint64_t tag, const std::byte* data, std::size_t bytes, const ErrorContext&) {
    const std::lock_guard lock(queues->mutex);
    const Number number{rank.rank, to, tag, queues->started[{rank.rank, to, tag, 0}]++};
    queues->sent[number].assign(data, data + bytes);
    queues->changed.notify_all();
    return {number};
  }
  Request receive(int from, std::uint64_t tag, std::byte* data, std::size_t, const ErrorContext&) {
    const std::lock_guard lock(queues->mutex);
    return {Number{from, rank.rank, tag, queues->started[{from, rank.rank, tag, 1}]++}, data};
  }
  void wait(std::span<Request> requests, const Timeout& until, const ErrorContext& context) {
    std::unique_lock lock(queues->mutex);
    for (auto& [number, target] : requests) {
      if (!number) continue;
      const auto met = [&, &n = *number, receives = target != nullptr] { return queues->sent.contains(n) == receives; };
      if (!queues->changed.wait_until(lock, Deadline(until).end(), [&] { return met() || queues->revoked; }))
        throw TimeoutError("timed out: not all ranks joined", context);
      if (!met()) detail::RevocationReason(*queues->revoked).raise(context);
      if (target != nullptr) std::ranges::copy(queues->sent.extract(*number).mapped(), target);
      queues->changed.notify_all();
      number.reset();
    }
  }
  void check_usable(const ErrorContext& context) {
    const std::lock_guard lock(queues->mutex);
    if (queues->revoked) detail::RevocationReason(*queues->revoked).raise(context);
  }
  void revoke(const std::string& reason) noexcept {
    const std::lock_guard lock(queues->mutex);
    if (!queues->revoked) queues->revoked = detail::RevocationReason::parse(reason).by(rank.rank);
    queues->changed.notify_all();
  }
  /// The queues of the group's first rank are those of the group.
  std::unique_ptr<QueueLinks> split(const RankOf& part, const auto& group, auto& backend, const auto& location) {
    const auto own = std::make_shared<Queues>();
    const auto all = detail::all_gathered(backend, &own, location);
    QueueLinks made{*all[static_cast<std::size_t>(group[0].rank)], part, limit};
    backend.execute(calls::Barrier<Host>{location});  // all ranks share the queues now
    return std::make_unique<QueueLinks>(made);
  }

  std::shared_ptr<Queues> queues;
  RankOf rank;
  Timeout limit;
};
}  // namespace toy
