// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <vector>

#include "distx/core/detail/leak.hpp"
#include "distx/mpi/detail/agreement.hpp"

namespace distx::detail::mpi {

/// Sends and receives the letters of agreements, on Control's communicator with a separate tag. Does not block.
///
/// A letter names the group that agrees, so those of earlier and later groups are kept apart.
class Letters {
 public:
  using AgreementLetter = Agreement::AgreementLetter;
  struct Received {
    int from = 0;
    AgreementLetter letter;
  };

  explicit Letters(MPI_Comm comm) : comm_(comm) {}

  /// Errors of MPI are ignored: a rank that cannot be reached is lost, or takes this one for lost.
  void send(std::uint64_t group, int to, const AgreementLetter& letter) {
    const auto& ranks = letter.survivors.ranks;
    LetterHeader header{group, static_cast<int>(letter.kind), letter.version, letter.survivors.channel,
                        static_cast<int>(ranks.size())};
    Sent& sent = outbox_.emplace_back();
    sent.bytes.resize(sizeof header + ranks.size() * sizeof(int));
    std::memcpy(sent.bytes.data(), &header, sizeof header);
    if (!ranks.empty()) std::memcpy(sent.bytes.data() + sizeof header, ranks.data(), ranks.size() * sizeof(int));
    if (MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, to, tag, comm_, &sent.request) !=
        MPI_SUCCESS)
      sent.request = MPI_REQUEST_NULL;
  }
  /// Receives what has arrived, and returns the letters of a group that were not returned before.
  [[nodiscard]] std::deque<Received> take(std::uint64_t group) {
    outbox_.remove_if([](Sent& sent) {
      int complete = 0;
      return MPI_Test(&sent.request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0;
    });
    for (int vain = 0; vain < 2;) {  // Open MPI progresses after it probes, so probe twice
      int arrived = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &arrived, &status) != MPI_SUCCESS) break;
      if (arrived == 0)
        ++vain;
      else if (!receive(status))
        break;
    }
    const auto found = inbox_.extract(group);
    return found.empty() ? std::deque<Received>() : std::move(found.mapped());
  }
  /// Leaks the letters that peers may still read.
  void abandon() noexcept { detail::leak(std::move(outbox_)); }

 private:
  struct LetterHeader {
    std::uint64_t group = 0;
    int kind = 0, version = 0, channel = 0, ranks = 0;
  };
  struct Sent {
    std::vector<std::byte> bytes{};
    MPI_Request request = MPI_REQUEST_NULL;
  };
  static constexpr int tag = 1;  // Control uses 0

  bool receive(const MPI_Status& status) {
    int count = 0;
    if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS) return false;
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    if (MPI_Recv(bytes.data(), count, MPI_BYTE, status.MPI_SOURCE, tag, comm_, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return false;
    LetterHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    Received received{status.MPI_SOURCE,
                      {static_cast<Agreement::Kind>(header.kind), header.version, {{}, header.channel}}};
    auto& ranks = received.letter.survivors.ranks;
    ranks.resize(static_cast<std::size_t>(header.ranks));
    if (!ranks.empty()) std::memcpy(ranks.data(), bytes.data() + sizeof header, ranks.size() * sizeof(int));
    inbox_[header.group].push_back(std::move(received));
    return true;
  }

  MPI_Comm comm_;
  std::list<Sent> outbox_;
  std::map<std::uint64_t, std::deque<Received>> inbox_;
};

}  // namespace distx::detail::mpi
