// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A process forked from that of a rank. Ranks are threads, each with its own connector.
#include <doctest/doctest.h>

#include <optional>

#include <distx/distx.hpp>

#include "connect/over_tcp.hpp"
#include "forked_process.hpp"

namespace {

/// Returns the bits of the calls of a connector that a forked process may make, although it must not; destroys the
/// connector while unwinding.
template <class C>
int accepted(std::optional<C>& connector) {
  int bits = 0;
  const auto rejects = [&](int bit, auto&& call) {
    try {
      call();
      bits |= bit;
    } catch (const distx::InvalidState& error) {
      if (error.message().find("this connector was made by process") == std::string::npos) bits |= bit;
    }
  };
  std::byte one{};
  std::vector<std::byte> all(static_cast<std::size_t>(connector->size()));
  rejects(1, [&] { connector->barrier(); });
  rejects(2, [&] { connector->broadcast({&one, 1}, 0); });
  rejects(4, [&] { connector->all_gather({&one, 1}, all); });
  rejects(8, [&] { static_cast<void>(connector->shrink(std::chrono::seconds(1))); });
  if constexpr (!std::same_as<C, distx::ThreadConnector>) rejects(16, [&] { static_cast<void>(connector->grow()); });
  const auto channel = connector->failure_channel();
  channel->publish(7, "by a forked process");
  try {
    const std::optional<C> unwound = std::move(connector);
    throw std::exception();
  } catch (const std::exception&) {  // the destructor has returned
  }
  return bits;
}

/// Has each rank fork in turn, between calls of the ranks.
template <class C>
void fork_each(C& own) {
  std::optional<C> connector(std::move(own));
  for (int rank = 0; rank < connector->size(); ++rank) {
    if (rank == connector->rank()) CHECK(test::in_forked_process([&] { return accepted(connector); }) == 0);
    CHECK_FALSE(connector->failure_channel()->poll(7));
    const auto all = distx::all_gather_values(*connector, connector->rank());
    for (int other = 0; other < connector->size(); ++other) CHECK(all[static_cast<std::size_t>(other)] == other);
  }
}

const std::vector<std::string> none(2);

}  // namespace

TEST_CASE("a process forked from a rank in a folder is rejected, and leaves the job and its files alone") {
  const test::NewFolder folder;
  CHECK(test::each_in(folder.path(), 2, [](distx::FileConnector& connector) { fork_each(connector); }) == none);
  CHECK(folder.empty());
}
TEST_CASE("a process forked from a rank over TCP is rejected, and does not end its connections") {
  CHECK(test::each_over_tcp(2, [](distx::TcpConnector& connector) { fork_each(connector); }) == none);
}
TEST_CASE("a process forked from a rank that is a thread is rejected") {
  distx::spawn(2, [](distx::ThreadConnector& connector) { fork_each(connector); });
}
