// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "distx/comm/messages/message_collectives.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/mpi/detail/handles.hpp"
#include "distx/mpi/options.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// What carries the messages of a group of ranks: an MPI communicator, and the group's ranks in it.
struct RankMap {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int> ranks{};  ///< by rank in the group; empty if all, in their order

  /// Returns the rank in the communicator.
  [[nodiscard]] int operator[](int rank) const noexcept {
    return ranks.empty() ? rank : ranks[static_cast<std::size_t>(rank)];
  }
};

/// The ranks of a communicator, and the MPI communicators and tags that they use: two for them alone, or a channel
/// of the session's.
struct Transport {
  calls::RankOf self{0, 1, "mpi"};
  std::vector<int> ranks{};  ///< numbered as in the session's world
  std::uint64_t identity = 0;
  bool serves_threads = true;                          ///< whether MPI does, on every rank
  mpi_unique_comm blocking{}, started{};               ///< both null where a channel is used
  RankMap messages{}, calls{};                         ///< for user messages; for everything else
  int first_message_tag = 0, last_message_tag = 8191;  ///< of MPI; of the user
  int data_tags = 3;                                   ///< for the data of a user's tag, in addition to its header
  int first_call_tag = 0, call_tags = 32768;
  bool scheduled = true;  ///< whether distx makes all collectives whose calls are compared; the same on every rank
  bool threaded = true;   ///< whether a progress thread makes asynchronous collectives, on every rank

  /// Returns whether the descriptions of calls contain the counts of all ranks.
  [[nodiscard]] bool counts_fit() const noexcept {
    return self.size <= MpiOptions::most_scheduled_ranks || !has_collectives();
  }
  /// Returns whether MPI's own collectives serve these ranks.
  [[nodiscard]] bool has_collectives() const noexcept { return bool(blocking); }
  /// Releases the MPI communicators, which requests of this rank or another may still use.
  void release() noexcept {
    (void)blocking.release();
    (void)started.release();
  }
  /// Divides MPI's `tags` tags: each tag of the user takes one for headers and some for data.
  void divide_tags(std::int64_t tags) noexcept {
    const std::int64_t for_data = std::clamp<std::int64_t>(tags / 8192 - 1, 3, 1023);
    data_tags = static_cast<int>(for_data);
    last_message_tag = static_cast<int>(tags / (1 + for_data)) - 1;
  }
};

/// The messages of one queue of collectives over MPI: see MessageTransport.
class QueueTransport {
 public:
  using Request = MPI_Request;
  using Tag = int;
  static constexpr bool staged = true;  // MPI may keep the memory of a message that is given up
  static constexpr int most_direct = 8;

  /// Call number n has three tags from `first_tag + n * per_call` on, until they recur.
  /// @param tags  the number of all tags
  /// @param rank_map  has no other messages with these tags
  QueueTransport(RankMap rank_map, int first_tag, int per_call, int tags)
      : rank_map_(std::move(rank_map)),
        first_tag_(first_tag),
        per_call_(per_call),
        last_call_(std::bit_floor(static_cast<unsigned>(tags / per_call)) - 1) {}

  /// About 1 MiB is in flight in a stage. A message has at most 60 KiB, which fit into caches, and which Open MPI sends
  /// over TCP without asking the receiver.
  [[nodiscard]] static std::size_t slice_bytes(std::size_t ranks) noexcept {
    return std::clamp<std::size_t>((std::size_t{1} << 18) / ranks / 64 * 64, 8192, 60 << 10);
  }
  [[nodiscard]] static Request no_request() noexcept { return MPI_REQUEST_NULL; }
  [[nodiscard]] Tag tag(MessageStage stage, std::uint64_t number) const noexcept {
    return first_tag_ + static_cast<int>(number & last_call_) * per_call_ + static_cast<int>(stage);
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
    const auto over = [&] { return are_complete(requests, true); };
    return wait_until(std::chrono::milliseconds(100), over, [] { return false; }) == WaitEnd::ready;
  }

 private:
  RankMap rank_map_;
  int first_tag_, per_call_;
  std::uint64_t last_call_;  // a mask, because a division takes part of a small call's time
};

using QueuedCollectives = MessageCollectives<QueueTransport>;

}  // namespace distx::inline DISTX_ABI::detail::mpi
