// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "distx/mpi/detail/agreement.hpp"
#include "distx/mpi/detail/control_messages.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The messages of agreements, on Control's communicator with a separate tag.
///
/// A message names the group that agrees, so those of earlier and later groups are kept apart.
class AgreementMessages {
 public:
  using Message = Agreement::Message;
  struct Received {
    int from = 0;
    Message message;
  };

  AgreementMessages(MPI_Comm comm, int own) : messages_(comm, own, tag) {}

  void send(std::uint64_t group, int to, const Message& message) {
    const auto& ranks = message.survivors.ranks;
    const Header header{group, static_cast<int>(message.kind), message.version, message.survivors.channel,
                        static_cast<int>(ranks.size())};
    std::vector<std::byte> bytes(sizeof header + ranks.size() * sizeof(int));
    std::memcpy(bytes.data(), &header, sizeof header);
    if (!ranks.empty()) std::memcpy(bytes.data() + sizeof header, ranks.data(), ranks.size() * sizeof(int));
    messages_.post(std::move(bytes), {&to, 1});
  }
  /// Receives what has arrived, and returns the messages of a group that were not returned before.
  [[nodiscard]] std::deque<Received> take(std::uint64_t group) {
    messages_.remove_sent();
    messages_.receive([&](int from, std::span<const std::byte> bytes) {
      Header header;
      std::memcpy(&header, bytes.data(), sizeof header);
      Received received{from, {static_cast<Agreement::Kind>(header.kind), header.version, {{}, header.channel}}};
      auto& ranks = received.message.survivors.ranks;
      ranks.resize(static_cast<std::size_t>(header.ranks));
      if (!ranks.empty()) std::memcpy(ranks.data(), bytes.data() + sizeof header, ranks.size() * sizeof(int));
      inbox_[header.group].push_back(std::move(received));
    });
    const auto found = inbox_.extract(group);
    return found.empty() ? std::deque<Received>() : std::move(found.mapped());
  }
  void abandon() noexcept { messages_.abandon(); }

 private:
  struct Header {
    std::uint64_t group = 0;
    int kind = 0, version = 0, channel = 0, ranks = 0;
  };
  static constexpr int tag = 1;  // Control uses 0

  ControlMessages messages_;
  std::map<std::uint64_t, std::deque<Received>> inbox_;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi
