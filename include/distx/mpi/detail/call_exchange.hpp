// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "distx/comm/messages/call_description.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/mpi/detail/carrier.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/pulse.hpp"

namespace distx::detail::mpi {

/// Sends each rank's description of a call, and its operand if small, to every rank.
///
/// Up to 8 ranks send directly to each other in one round; more ranks use Bruck's all-gather in ceil(log2 N) rounds
/// (Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
/// message-passing systems", 1997). Tags contain the number of the call, so messages of different calls never match.
class CallExchange {
 public:
  /// @param carrier  has no other messages with the tags that are passed to `begin`
  CallExchange(Carrier carrier, const calls::RankOf& self)
      : carrier_(std::move(carrier)),
        self_(self),
        direct_(self.size <= most_direct),
        views_(static_cast<std::size_t>(self.size)) {
    const auto ranks = static_cast<std::size_t>(self.size);
    capacity_ = sizeof(detail::CallDescription) + (counts_fit() ? 2 * ranks * sizeof(std::size_t) : 0) +
                inline_bytes(self.size);
    capacity_ = (capacity_ + 7) / 8 * 8;
    memory_ = Buffer<std::byte>(capacity_ * ranks);
    requests_.resize(direct_ ? 2 * (ranks - 1) : 2, MPI_REQUEST_NULL);
  }
  CallExchange(const CallExchange&) = delete;
  CallExchange& operator=(const CallExchange&) = delete;

  /// Returns the maximum bytes of an operand that is sent with the description; the same on every rank.
  [[nodiscard]] static std::size_t inline_bytes(int size) noexcept {
    return size <= most_direct ? 2048 : std::max<std::size_t>(64, 16384 / static_cast<std::size_t>(size) / 8 * 8);
  }

  /// Describes a call and posts the first messages. @pre over()
  void begin(const Call<Host>& call, int tag, const ErrorContext& context) {
    tag_ = tag;
    std::byte* const block = direct_ ? slot(self_.rank) : memory_.data();
    filled_ = detail::CallDescription::write(call, self_.rank, inline_bytes(self_.size), counts_fit(), block);
    blocks_ = 1;
    missing_ = self_.size - 1;
    if (direct_)
      post_all(block, context);
    else
      post_round(context);
  }
  /// Progresses without blocking; returns `over()`. Until that is true, MPI accesses this object.
  bool advance(const ErrorContext& context) {
    while (missing_ > 0) {
      int complete = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, MPI_STATUSES_IGNORE),
            "MPI_Testall", context);
      if (complete == 0) return false;
      if (direct_) {
        missing_ = 0;
      } else {
        take_round();
        if (missing_ > 0) post_round(context);
      }
    }
    return true;
  }
  /// Returns whether every rank's description has arrived.
  [[nodiscard]] bool over() const noexcept { return missing_ == 0; }
  /// Cancels the receives and gives the rest a moment to complete; returns whether MPI is done with this object.
  [[nodiscard]] bool abandon() noexcept {
    if (over()) return true;
    for (std::size_t i = 0; i < requests_.size(); i += 2)
      if (requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
    const auto ended = [this] {
      int complete = 0;
      return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, MPI_STATUSES_IGNORE) !=
                 MPI_SUCCESS ||
             complete != 0;
    };
    if (watched_wait_until(std::chrono::milliseconds(100), self_, ended, [] { return false; }) != WaitEnd::ready)
      return false;
    missing_ = 0;
    return true;
  }
  /// Returns the ranks whose description has not arrived.
  [[nodiscard]] std::vector<int> missing() {
    std::vector<int> ranks;
    if (direct_) {
      for (int other = 0, request = 0; other < self_.size; ++other) {
        if (other == self_.rank) continue;
        int complete = 0;
        MPI_Request& receive = requests_[2 * static_cast<std::size_t>(request++)];
        if (receive == MPI_REQUEST_NULL) continue;
        if (MPI_Request_get_status(receive, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS || complete == 0)
          ranks.push_back(other);
      }
    } else {
      for (int distance = blocks_; distance < self_.size; ++distance)
        ranks.push_back((self_.rank + distance) % self_.size);
    }
    return ranks;
  }

  /// Reads the descriptions. @pre over()
  /// @throws MismatchError on every rank if the ranks' calls differ
  void compare(const Call<Host>& call, const ErrorContext& context) {
    const std::byte* at = memory_.data();
    const auto message = [&](std::size_t i) {
      const std::byte* const block = direct_ ? slot(static_cast<int>(i)) : at;
      at += detail::CallDescription::at(block).bytes();
      return block;
    };
    detail::compare_descriptions(call, direct_ ? slot(self_.rank) : memory_.data(), message, views_, counts_fit(),
                                 context);
  }
  /// Returns every rank's side of the call, until the next `begin`. @pre compare() returned
  [[nodiscard]] const std::vector<detail::PeerView>& views() const noexcept { return views_; }
  /// Returns whether the descriptions contain the counts of all ranks. Those of a Party always do, because MPI's
  /// collectives do not serve them.
  [[nodiscard]] bool counts_fit() const noexcept { return counts_fit(self_.size) || carrier_.ranks != nullptr; }
  [[nodiscard]] static bool counts_fit(int size) noexcept { return size <= most_counts; }
  /// Returns whether the descriptions contain all data that the ranks send. @pre compare() returned
  [[nodiscard]] bool all_inlined(const Call<Host>& call) const noexcept {
    if (!detail::all_inlined(call, views_)) return false;
    return counts_fit() || !detail::traits_of(call.kind).exchanges_counts;
  }
  /// Completes the call on this rank. @pre all_inlined(call)
  void complete(const Call<Host>& call) { detail::complete_inlined(call, self_, views_, sources_); }

 private:
  static constexpr int most_direct = 8;
  static constexpr int most_counts = 64;  ///< the maximum number of ranks for counts to be sent with the descriptions

  [[nodiscard]] std::byte* slot(int rank) const noexcept {
    return memory_.data() + static_cast<std::size_t>(rank) * capacity_;
  }

  void post_all(const std::byte* block, const ErrorContext& context) {
    std::size_t request = 0;
    for (int other = 0; other < self_.size; ++other) {
      if (other == self_.rank) continue;
      check(MPI_Irecv(slot(other), static_cast<int>(capacity_), MPI_BYTE, carrier_[other], tag_, carrier_.comm,
                      &requests_[request]),
            "MPI_Irecv", context);
      request += 2;
    }
    request = 1;
    for (int other = 0; other < self_.size; ++other) {
      if (other == self_.rank) continue;
      check(MPI_Isend(block, static_cast<int>(filled_), MPI_BYTE, carrier_[other], tag_, carrier_.comm,
                      &requests_[request]),
            "MPI_Isend", context);
      request += 2;
    }
  }
  /// Sends the first blocks to the rank `blocks_` before this one, and receives the same number from the rank after it.
  void post_round(const ErrorContext& context) {
    const int count = std::min(blocks_, self_.size - blocks_);
    std::size_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += detail::CallDescription::at(memory_.data() + bytes).bytes();
    const int to = (self_.rank + self_.size - blocks_) % self_.size, from = (self_.rank + blocks_) % self_.size;
    const auto room = capacity_ * static_cast<std::size_t>(count);
    check(MPI_Irecv(memory_.data() + filled_, static_cast<int>(room), MPI_BYTE, carrier_[from], tag_, carrier_.comm,
                    &requests_[0]),
          "MPI_Irecv", context);
    check(
        MPI_Isend(memory_.data(), static_cast<int>(bytes), MPI_BYTE, carrier_[to], tag_, carrier_.comm, &requests_[1]),
        "MPI_Isend", context);
  }
  void take_round() noexcept {
    const int count = std::min(blocks_, self_.size - blocks_);
    for (int i = 0; i < count; ++i) filled_ += detail::CallDescription::at(memory_.data() + filled_).bytes();
    blocks_ += count;
    missing_ = self_.size - blocks_;
  }

  Carrier carrier_;
  calls::RankOf self_;
  bool direct_;
  std::size_t capacity_ = 0;  ///< bytes of the largest block
  Buffer<std::byte> memory_;  ///< by rank if direct, otherwise packed with this rank's block first
  std::vector<MPI_Request> requests_;
  std::vector<detail::PeerView> views_;
  std::vector<const void*> sources_;
  int tag_ = 0;
  int missing_ = 0;
  int blocks_ = 0;
  std::size_t filled_ = 0;
};

}  // namespace distx::detail::mpi
