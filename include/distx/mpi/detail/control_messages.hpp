// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <cstddef>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "distx/core/detail/leak.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Messages of one tag that any rank of a communicator may send to any other at any time. Does not block.
///
/// Errors of MPI are ignored: a rank that cannot be reached has failed, or considers this one failed, and its peers
/// have deadlines.
class ControlMessages {
 public:
  /// @param comm  must outlive the calls of `post` and `receive`
  /// @param own  this rank
  ControlMessages(MPI_Comm comm, int own, int tag) noexcept : comm_(comm), own_(own), tag_(tag) {}

  /// Sends a message to these ranks, except this one.
  void post(std::vector<std::byte> bytes, std::span<const int> ranks) {
    remove_sent();
    Sent& sent = sent_.emplace_back(std::move(bytes), std::vector<MPI_Request>(ranks.size(), MPI_REQUEST_NULL));
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] != own_ && MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, ranks[i],
                                        tag_, comm_, &sent.requests[i]) != MPI_SUCCESS)
        sent.requests[i] = MPI_REQUEST_NULL;
  }
  /// Calls `take(from, bytes)` for each message that has arrived.
  template <class F>
  void receive(F&& take) {
    for (int misses = 0; misses < 2;) {  // Open MPI progresses after it probes, so probe twice
      int arrived = 0, count = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, tag_, comm_, &arrived, &status) != MPI_SUCCESS) return;
      if (arrived == 0) {
        ++misses;
        continue;
      }
      if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS) return;
      received_.resize(static_cast<std::size_t>(count));
      if (MPI_Recv(received_.data(), count, MPI_BYTE, status.MPI_SOURCE, tag_, comm_, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
      take(status.MPI_SOURCE, std::span<const std::byte>(received_));
    }
  }
  void remove_sent() noexcept {
    sent_.remove_if([](Sent& sent) {
      int complete = 0;
      return MPI_Testall(static_cast<int>(sent.requests.size()), sent.requests.data(), &complete,
                         MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
             complete != 0;
    });
  }
  /// Leaks the messages that peers may still read.
  void abandon() noexcept { leak(std::move(sent_)); }

 private:
  struct Sent {
    Sent(std::vector<std::byte> message, std::vector<MPI_Request> sends)
        : bytes(std::move(message)), requests(std::move(sends)) {}
    std::vector<std::byte> bytes;
    std::vector<MPI_Request> requests;
  };

  MPI_Comm comm_;
  int own_;
  int tag_;
  std::list<Sent> sent_;
  std::vector<std::byte> received_;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi
