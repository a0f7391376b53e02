// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "distx/comm/calls/validate.hpp"
#include "distx/mpi/detail/check.hpp"

namespace distx::mpi {

/// How the ranks of a communicator come together before a collective, and hear whether all come to the same one.
///
/// A dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988): in round k
/// a rank tells the one 2^k after it what it has heard, and after ceil(log2 N) rounds has heard of all. What they tell
/// is the least and the greatest fingerprint, as bytes: where these are equal all are, and where they are not each rank
/// has at least one that differs from its own.
class RollCall {
 public:
  struct Said {
    Fingerprint call;
    int rank = 0;
  };

  /// Messages of tag 0 on `comm`, which has no others of that tag.
  RollCall(MPI_Comm comm, const RankOf& self) : comm_(comm), self_(self) {
    for (int distance = 1; distance < self.size; distance *= 2) rounds_.emplace_back().distance = distance;
    round_ = rounds_.size();
  }
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// @pre over()
  void begin(const Fingerprint& mine, const ErrorContext& context) {
    heard_ = {Said{mine, self_.rank}, Said{mine, self_.rank}};
    round_ = 0;
    post(context);
  }
  /// Goes on as far as it can. @return over()
  bool advance(const ErrorContext& context) {
    while (!over()) {
      Round& round = rounds_[round_];
      int complete = 0;
      check(MPI_Testall(2, round.requests.data(), &complete, MPI_STATUSES_IGNORE), "MPI_Testall", context);
      if (complete == 0) return false;
      take(round.in);
      ++round_;
      post(context);
    }
    return true;
  }
  /// Whether all have come; until then MPI reads and writes this object.
  [[nodiscard]] bool over() const noexcept { return round_ == rounds_.size(); }
  /// A rank that has come to another call than this one, if there is one. @pre over()
  [[nodiscard]] std::optional<Said> other_call(const Fingerprint& mine) const noexcept {
    for (const Said& said : heard_)
      if (said.call != mine) return said;
    return std::nullopt;
  }

 private:
  using Extremes = std::array<Said, 2>;  ///< the least fingerprint, and the greatest

  struct Round {
    int distance = 0;
    Extremes out;
    Extremes in;
    std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  };

  static_assert(std::has_unique_object_representations_v<Fingerprint>);
  static int order(const Said& a, const Said& b) noexcept { return std::memcmp(&a.call, &b.call, sizeof a.call); }
  void take(const Extremes& theirs) noexcept {
    if (order(theirs[0], heard_[0]) < 0) heard_[0] = theirs[0];
    if (order(theirs[1], heard_[1]) > 0) heard_[1] = theirs[1];
  }
  void post(const ErrorContext& context) {
    if (over()) return;
    Round& round = rounds_[round_];
    round.out = heard_;
    const int from = (self_.rank + self_.size - round.distance) % self_.size;
    const int to = (self_.rank + round.distance) % self_.size;
    check(MPI_Irecv(&round.in, sizeof round.in, MPI_BYTE, from, 0, comm_, &round.requests[0]), "MPI_Irecv", context);
    check(MPI_Isend(&round.out, sizeof round.out, MPI_BYTE, to, 0, comm_, &round.requests[1]), "MPI_Isend", context);
  }

  MPI_Comm comm_;
  RankOf self_;
  std::vector<Round> rounds_;
  std::size_t round_ = 0;
  Extremes heard_{};
};

}  // namespace distx::mpi
