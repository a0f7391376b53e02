// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <chrono>
#include <utility>

#include "distx/comm/messages/message_collectives.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/rank_map.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The tags of a queue of collectives: call number n has three from `first + n * per_call` on, until they recur.
struct QueueTags {
  int first = 0, per_call = 3;
  std::uint64_t last_call = 0;  ///< a mask, because a division takes part of a small call's time

  /// @param tags  the number of all tags
  [[nodiscard]] static QueueTags of(int first, int per_call, int tags) noexcept {
    return {first, per_call, std::bit_floor(static_cast<unsigned>(tags / per_call)) - 1};
  }
};

/// The messages of one queue of collectives over MPI: see MessageTransport.
class QueueTransport {
 public:
  using Request = MPI_Request;
  using Tag = int;
  static constexpr bool staged = true;  // MPI may keep the memory of a message that is given up
  static constexpr int most_direct = 8;

  /// @param rank_map  has no other messages with these tags
  QueueTransport(RankMap rank_map, const QueueTags& tags) : rank_map_(std::move(rank_map)), tags_(tags) {}

  /// About 1 MiB is in flight in a stage. A message has at most 60 KiB, which fit into caches, and which Open MPI sends
  /// over TCP without asking the receiver.
  [[nodiscard]] static std::size_t slice_bytes(std::size_t ranks) noexcept {
    return std::clamp<std::size_t>((std::size_t{1} << 18) / ranks / 64 * 64, 8192, 60 << 10);
  }
  [[nodiscard]] static Request no_request() noexcept { return MPI_REQUEST_NULL; }
  [[nodiscard]] Tag tag(MessageStage stage, std::uint64_t number) const noexcept {
    return tags_.first + static_cast<int>(number & tags_.last_call) * tags_.per_call + static_cast<int>(stage);
  }
  void send(int to, Tag tag, const std::byte* data, std::size_t bytes, Request& request, const ErrorContext& context) {
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, rank_map_[to], tag, rank_map_.comm, &request), "MPI_Isend",
          context);
  }
  void receive(int from, Tag tag, std::byte* data, std::size_t bytes, Request& request, const ErrorContext& context) {
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, rank_map_[from], tag, rank_map_.comm, &request),
          "MPI_Irecv", context);
  }
  [[nodiscard]] bool test(std::span<Request> requests, const ErrorContext& context) {
    int complete = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, MPI_STATUSES_IGNORE),
          "MPI_Testall", context);
    return complete != 0;
  }
  [[nodiscard]] bool is_complete(const Request& request) const noexcept { return mpi::is_complete(request); }
  void cancel(std::span<Request> receives) noexcept {
    for (Request& receive : receives)
      if (receive != MPI_REQUEST_NULL) MPI_Cancel(&receive);
  }
  [[nodiscard]] bool release(std::span<Request> requests) noexcept {
    const auto over = [&] {
      int complete = 0;
      return MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, MPI_STATUSES_IGNORE) !=
                 MPI_SUCCESS ||
             complete != 0;
    };
    return wait_until(std::chrono::milliseconds(100), over, [] { return false; }) == WaitEnd::ready;
  }

 private:
  RankMap rank_map_;
  QueueTags tags_;
};

using QueuedCollectives = MessageCollectives<QueueTransport>;

}  // namespace distx::inline DISTX_ABI::detail::mpi
