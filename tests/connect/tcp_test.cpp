// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "connect/connectors.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>

#include "connect/over_tcp.hpp"
#include "connect/wait_for_failure.hpp"
#include "words.hpp"

namespace {

namespace control = distx::detail::control;
namespace tcp = distx::detail::tcp;
using distx::TcpConnector;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::contains;
using test::each;
using test::each_over_tcp;
using test::error_of;
using test::expect;
using test::free_port;
using test::Messages;
using test::stranger;

std::string hexadecimal(const std::string& digest) {
  std::string text;
  for (const auto byte : digest) {
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}
std::string digest_of(const std::string& text) { return hexadecimal(tcp::sha256(text)); }

TEST_CASE("SHA-256 returns the digests of FIPS 180-4's examples") {
  CHECK(digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(digest_of(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("HMAC-SHA256 returns the codes of RFC 4231's test cases") {
  const auto code = [](std::string_view key, std::string_view message) {
    return hexadecimal(tcp::hmac_sha256(key, message));
  };
  CHECK(code(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(code("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(code(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(code(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("frames are read as they were written, in pieces of any size, and malformed ones are recognized") {
  const auto bytes = control::text_of({{.kind = control::FrameKind::call, .limit = 7}, "a call", ""});
  for (std::size_t known = 0; known < bytes.size(); ++known) {
    std::size_t begin = 0;
    CHECK(!control::parse_frame(std::string_view(bytes).substr(0, known), begin));
    CHECK(begin == 0);
  }
  std::size_t begin = 0;
  const auto parsed = control::parse_frame(bytes, begin);
  REQUIRE(parsed);
  CHECK(begin == bytes.size());
  CHECK((parsed->kind == control::FrameKind::call && parsed->limit == 7));
  CHECK((parsed->text == "a call" && parsed->bytes.empty()));
  for (const bool in_text : {false, true}) {
    auto longer = bytes;
    const auto place = in_text ? offsetof(control::FrameFields, text_size) : offsetof(control::FrameFields, bytes_size);
    longer.replace(place, 4, "\xff\xff\xff\xff");
    begin = 0;
    const auto refused = control::parse_frame(longer, begin);
    CHECK((refused && refused->kind == control::FrameKind()));
    CHECK(begin == 0);
  }
  CHECK(control::frame_from(bytes).text == "a call");
  CHECK(control::frame_from(std::string_view(bytes).substr(1)).kind == control::FrameKind());
  CHECK(control::frame_from(bytes + "x").kind == control::FrameKind());
}

TEST_CASE("whether waits are logged is decided when a root is made, not by the thread that serves it") {
  struct Root final : control::ControlRoot {
    Root() : ControlRoot("test", 2, false) {
      for (auto& rank : ranks_) rank = {.presence = control::RankRecord::Presence::here, .channel = &inbox};
      joined_ = true;
    }
    using ControlRoot::next_end;
    using ControlRoot::take;
    control::Inbox inbox;
  } root;
  ::setenv("DISTX_LOG", "info", 1);
  const std::int64_t limit = std::chrono::nanoseconds(std::chrono::hours(1)).count();
  CHECK(root.take(0, {{.kind = control::FrameKind::call, .limit = limit}, "barrier"}));
  CHECK(root.next_end() > distx::Deadline::clock::now() + std::chrono::minutes(30));
  ::unsetenv("DISTX_LOG");
}

void check_invariants(TcpConnector& connector) {
  const int rank = connector.rank(), size = connector.size();
  expect(connector.local_rank() == rank && connector.local_size() == size, "local");
  expect(connector.root_rank() == 0, "root");
  connector.barrier();
  const auto ranks = distx::all_gather_values(connector, rank);
  for (int r = 0; r < size; ++r) expect(ranks[static_cast<std::size_t>(r)] == r, "all_gather");
  for (int root = 0; root < size; ++root)
    expect(distx::broadcast_value(connector, rank * 10 + 3, root) == root * 10 + 3, "broadcast");
  connector.all_gather({}, {});
  connector.broadcast({}, 0);
}

TEST_CASE("ranks over TCP satisfy the Connector contract, with a token and without") {
  for (const int size : {1, 2, 3, 4, 7})
    for (const char* token : {"", "secret"})
      CHECK(each_over_tcp(size,
                          [](TcpConnector& connector) {
                            for (int round = 0; round < 5; ++round) check_invariants(connector);
                          },
                          {.deadline = seconds(60), .token = token}) == Messages(static_cast<std::size_t>(size)));
}

TEST_CASE("a rank that starts late joins, whichever it is") {
  for (const int late : {0, 1}) {
    const int port = free_port();
    CHECK(each(3, [&](int rank) {
            if (rank == late) std::this_thread::sleep_for(milliseconds(50));
            TcpConnector connector("127.0.0.1", port, rank, 3, {.deadline = seconds(60)});
            check_invariants(connector);
          }) == Messages(3));
  }
}

TEST_CASE("different calls throw MismatchError on every rank, over TCP, and the ranks stay in step") {
  CHECK(each_over_tcp(3, [](TcpConnector& connector) {
          const auto error = error_of<distx::MismatchError>([&] {
            std::byte bytes[4]{};
            if (connector.rank() == 2)
              connector.broadcast(bytes, 0);
            else
              connector.barrier();
          });
          expect(contains(error, "(tcp): rank 0 calls barrier, rank 2 broadcast of 4 bytes from rank 0"), error);
          connector.barrier();
        }) == Messages(3));
}

TEST_CASE("a rank that enters a call after another one has timed out in it throws TimeoutError, over TCP") {
  std::atomic<int> entered{0};
  std::string errors[2];
  const auto await = [&](int number) {
    distx::detail::wait_until(seconds(20), [&] { return entered == number; }, [] { return false; });
  };
  const auto body = [&](TcpConnector& connector) {
    if (connector.rank() == 1) await(1);
    errors[connector.rank()] = error_of<distx::TimeoutError>([&] { connector.barrier(); });
    ++entered;
    await(2);
  };
  CHECK(each_over_tcp(2, body, {.deadline = milliseconds(1500)}) == Messages(2));
  CHECK(contains(errors[0], "timed out after 1.5 s: rank 1 of 2 did not enter this call"));
  CHECK(contains(errors[1], "another rank has timed out in this call"));
}

TEST_CASE("a call that a rank does not enter times out on the others, which name it") {
  std::atomic<int> over{0};
  const auto messages =
      each_over_tcp(4,
                    [&](TcpConnector& connector) {
                      connector.barrier();
                      if (connector.rank() == 1) {
                        distx::detail::wait_until(seconds(30), [&] { return over == 3; }, [] { return false; });
                        return;
                      }
                      const auto error = error_of<distx::TimeoutError>([&] { connector.barrier(); });
                      ++over;
                      expect(contains(error, "timed out after 0.5 s: rank 1 of 4 did not enter this call"), error);
                    },
                    {.deadline = milliseconds(500)});
  CHECK(messages == Messages(4));
}

TEST_CASE("a rank that leaves, or that throws, makes the others' calls throw over TCP") {
  for (const int size : {2, 3})
    for (int gone = 0; gone < size; ++gone)
      for (const bool throws : {false, true}) {
        const auto messages = each_over_tcp(size, [&](TcpConnector& connector) {
          connector.barrier();
          if (connector.rank() == gone) {
            if (throws) throw std::runtime_error("as it should");
            return;
          }
          const std::string name = "rank " + std::to_string(gone) + " of " + std::to_string(size);
          if (throws) {
            const auto error = error_of<distx::RevokedError>([&] { connector.barrier(); });
            expect(contains(error, name + " destroyed its connector while unwinding from an exception"), error);
            expect(contains(test::wait_for(*connector.failure_channel(), 3), "while unwinding"), "the channel");
          } else {
            const auto error = error_of<distx::RankFailure>([&] { connector.barrier(); });
            expect(contains(error, name + " destroyed its connector and will not enter this call"), error);
            expect(!connector.failure_channel()->poll(3), "a rank that left has not failed");
          }
        });
        for (int rank = 0; rank < size; ++rank)
          CHECK(messages[static_cast<std::size_t>(rank)] == (throws && rank == gone ? "as it should" : ""));
      }
}

TEST_CASE("every rank polls the reason that one rank published, and concurrent reasons become one, over TCP") {
  for (const int size : {1, 2, 4})
    CHECK(each_over_tcp(size, [&](TcpConnector& connector) {
            const auto channel = connector.failure_channel();
            expect(!channel->poll(5), "too early");
            connector.barrier();
            if (connector.rank() == size - 1) channel->publish(5, "reason");
            expect(test::wait_for(*channel, 5) == "reason", "the reason");
            connector.barrier();
            channel->publish(5, "too late");
            connector.barrier();
            expect(channel->poll(5) == "reason" && !channel->poll(6), "the first reason stays");
            for (std::uint64_t identity = 10; identity < 20; ++identity) {
              channel->publish(identity, std::string(1, static_cast<char>('a' + connector.rank())));
              connector.barrier();
              const auto all = distx::all_gather_values(connector, (*channel->poll(identity))[0]);
              expect(all == std::vector<char>(static_cast<std::size_t>(size), all[0]), "different reasons");
            }
          }) == Messages(static_cast<std::size_t>(size)));
}

/// Runs ranks whose connectors throw; returns the number whose message contains all the parts.
int refused(const std::vector<std::pair<int, int>>& ranks_and_sizes, const std::vector<std::string>& parts) {
  const int port = free_port();
  std::atomic<int> count{0};
  const auto messages = each(static_cast<int>(ranks_and_sizes.size()), [&](int thread) {
    const auto [rank, size] = ranks_and_sizes[static_cast<std::size_t>(thread)];
    const auto error = error_of<distx::ConnectError>(
        [&] { TcpConnector connector("127.0.0.1", port, rank, size, {.deadline = seconds(20)}); });
    bool all = true;
    for (const auto& part : parts) all = all && contains(error, part);
    if (all) ++count;
    if (!all) MESSAGE(error);
  });
  return count;
}

TEST_CASE("different sizes, and two processes of one rank, throw ConnectError on every rank over TCP") {
  CHECK(refused({{0, 3}, {1, 3}, {2, 4}}, {"rank 2 expects 4 ranks, rank 0 expects 3"}) == 3);
  CHECK(refused({{0, 2}, {2, 3}}, {"rank 2 expects 3 ranks, rank 0 expects 2"}) == 2);
  CHECK(refused({{0, 3}, {1, 3}, {1, 3}}, {"two processes have rank 1 (pid ", ": give every process"}) == 3);
  CHECK(refused({{0, 3}, {0, 3}, {1, 3}}, {"two processes have rank 0 (pid "}) == 3);
}

TEST_CASE("invalid ranks, sizes, ports and addresses throw ConnectError") {
  const auto error = [](const std::string& host, int port, int rank, int size) {
    return error_of<distx::ConnectError>(
        [&] { TcpConnector(host, port, rank, size, {.deadline = milliseconds(100)}); });
  };
  CHECK(error("127.0.0.1", 1, 4, 4) == "distx: connect (tcp): invalid rank 4: must be in [0, 4)");
  CHECK(contains(error("127.0.0.1", 1, -1, 4), "invalid rank -1"));
  CHECK(contains(error("127.0.0.1", 1, 0, 0), "invalid size 0: must be in [1, 65536]"));
  CHECK(contains(error("127.0.0.1", 0, 0, 1), "invalid port 0: must be in [1, 65535]"));
  CHECK(contains(error("127.0.0.1", 65536, 0, 1), "invalid port 65536"));
  CHECK(contains(error("", 4000, 0, 1), "the host is empty"));
  CHECK(contains(error("192.0.2.1", 4000, 0, 1), "192.0.2.1:4000 (192.0.2.1) is not a loopback address"));
}

TEST_CASE("an address of another host cannot be bound, with a token either") {
  const auto error = error_of<distx::ConnectError>(
      [] { TcpConnector("192.0.2.1", free_port(), 0, 1, {.deadline = milliseconds(100), .token = "secret"}); });
  CHECK(contains(error, "cannot listen at 192.0.2.1:"));
  CHECK(contains(error, "rank 0 needs an address of the host it runs on"));
}

TEST_CASE("ranks that do not join are named at the deadline, and a missing rank 0 with the address") {
  const int port = free_port();
  std::atomic<int> named{0};
  (void)each(2, [&](int rank) {
    const auto error = error_of<distx::TimeoutError>(
        [&] { TcpConnector connector("127.0.0.1", port, rank, 4, {.deadline = milliseconds(300)}); });
    if (contains(error, "ranks 2 and 3 of 4 did not join at 127.0.0.1:" + std::to_string(port))) ++named;
  });
  CHECK(named == 2);
  const auto lonely = error_of<distx::TimeoutError>(
      [&] { TcpConnector connector("127.0.0.1", port, 1, 2, {.deadline = milliseconds(100)}); });
  CHECK(contains(lonely, "timed out after 0.1 s: cannot join rank 0 at 127.0.0.1:" + std::to_string(port) +
                             " (Connection refused)"));
}

TEST_CASE("another program at the port is named as such, on rank 0 and on the others") {
  const auto listener = test::listen_on_loopback();
  const int port = listener.endpoint().port;
  CHECK(contains(error_of<distx::ConnectError>(
                     [&] { TcpConnector connector("127.0.0.1", port, 0, 2, {.deadline = milliseconds(300)}); }),
                 "cannot listen at 127.0.0.1:" + std::to_string(port) + " (Address already in use)"));
  // Also a distx of other frames, or on a host of another byte order.
  const bool is_little = std::endian::native == std::endian::little;
  for (const std::string start : {"x", "distx/1\n", is_little ? "distx/3b" : "distx/3l"}) {
    const auto talkative = test::listen_on_loopback();
    std::jthread program([&] {
      auto accepted = test::accept(talkative);
      (void)test::send(accepted, start + std::string(100, 'x'));
      (void)test::receive(accepted, 1);
    });
    CHECK(contains(error_of<distx::ConnectError>(
                       [&] { TcpConnector("127.0.0.1", talkative.endpoint().port, 1, 2, {.deadline = seconds(20)}); }),
                   "another program listens there"));
  }
  CHECK(tcp::magic == (is_little ? "distx/3l" : "distx/3b"));
}

TEST_CASE("a rank with another token throws ConnectError, and is named as the cause on rank 0") {
  const int port = free_port();
  std::string root, other;
  (void)each(2, [&](int rank) {
    const distx::TcpConnectorOptions options{.deadline = milliseconds(500), .token = rank == 0 ? "right" : "wrong"};
    const auto start = [&] { TcpConnector connector("127.0.0.1", port, rank, 2, options); };
    if (rank == 0)
      root = error_of<distx::TimeoutError>(start);
    else
      other = error_of<distx::ConnectError>(start);
  });
  CHECK(contains(other, "rank 0 has another token: set the same DISTX_TOKEN on every rank"));
  CHECK(contains(root, "rank 1 of 2 did not join"));
  CHECK(contains(root, "1 connection had another token"));
}

TEST_CASE("a rank 0 that does not know the token is recognized") {
  const auto listener = test::listen_on_loopback();
  std::jthread impostor([&] {
    auto accepted = test::accept(listener);
    (void)test::send(accepted, tcp::greeting(std::string(tcp::digest_bytes, 'n')));
    // It returns the rank's own proof.
    (void)test::send(accepted, test::receive(accepted, tcp::answer_bytes).substr(tcp::greeting_bytes));
  });
  CHECK(contains(error_of<distx::ConnectError>([&] {
                   TcpConnector connector("127.0.0.1", listener.endpoint().port, 1, 2,
                                          {.deadline = seconds(20), .token = "secret"});
                 }),
                 "the process there does not know the token"));
}

TEST_CASE("an answer that was recorded is refused when it is sent again") {
  const int port = free_port();
  const std::string token = "secret";
  std::string recorded;
  const auto messages = each(2, [&](int rank) {
    const distx::TcpConnectorOptions options{.deadline = seconds(20), .token = token};
    if (rank == 0) {
      TcpConnector connector("127.0.0.1", port, 0, 2, options);
      connector.barrier();
      return;
    }
    const auto sent = [&](tcp::BufferedSocket& socket, const std::string& answer) {
      expect(test::send(socket, answer), "cannot answer");
      const auto reply = test::receive(socket, tcp::digest_bytes);
      expect(!reply.empty(), "no reply");
      return reply != tcp::refusal();
    };
    auto first = stranger(port);
    const auto answer = test::answer_to_challenge(first, token);
    expect(sent(first, answer), "the right answer was refused");
    auto second = stranger(port);
    (void)test::answer_to_challenge(second, token);
    expect(!sent(second, answer), "the recorded answer was accepted");
    TcpConnector connector("127.0.0.1", port, 1, 2, options);
    connector.barrier();
  });
  CHECK(messages == Messages(2));
}

TEST_CASE("strangers that say nothing, send garbage or leave neither stop nor delay the ranks") {
  for (const char* token : {"", "secret"}) {
    const int port = free_port();
    std::atomic<int> strangers{0};
    constexpr int all_strangers = 40;
    const auto messages = each(4, [&](int rank) {
      const distx::TcpConnectorOptions options{.deadline = seconds(60), .token = token};
      std::vector<tcp::BufferedSocket> open;
      if (rank == 3) {
        // They are there before the last rank, and stay.
        for (int i = 0; i < all_strangers; ++i) {
          auto socket = stranger(port);
          const std::string garbage(static_cast<std::size_t>(1 << (i % 12)), static_cast<char>(i));
          if (i % 4 == 1) (void)test::send(socket, garbage);
          if (i % 4 == 2) (void)test::send(socket, std::string(tcp::magic) + garbage);
          if (i % 4 != 3) open.push_back(std::move(socket));
          ++strangers;
        }
      }
      TcpConnector connector("127.0.0.1", port, rank, 4, options);
      for (int round = 0; round < 5; ++round) {
        check_invariants(connector);
        if (rank == 3) open.push_back(stranger(port));
      }
    });
    CHECK(messages == Messages(4));
    CHECK(strangers == all_strangers);
  }
}

/// A sequence of numbers that looks random and is the same in every run.
class Noise {
 public:
  std::uint64_t operator()() noexcept {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }
  std::string bytes(std::size_t count) {
    std::string text;
    while (text.size() < count) text += static_cast<char>((*this)());
    return text;
  }
  /// Changes a few bytes, or the length.
  std::string changed(std::string text) {
    for (auto changes = (*this)() % 4; changes > 0 && !text.empty(); --changes)
      text[(*this)() % text.size()] = static_cast<char>((*this)());
    if ((*this)() % 4 == 0) text.resize((*this)() % (text.size() + 20));
    return text;
  }

 private:
  std::uint64_t state_ = 1;
};

control::Frame any_frame(Noise& noise) {
  const auto small = [&] { return noise() % 5; };
  switch (noise() % 6) {
    case 0:
      return {{.kind = control::FrameKind::call, .limit = static_cast<int>(small())}, "a call", noise.bytes(small())};
    case 1:
      return {{.kind = control::FrameKind::fail, .error = 't', .rank = 2}, "a message"};
    case 2:
      return {{.kind = control::FrameKind::ended,
               .end = static_cast<control::RankEnd>(small()),
               .rank = static_cast<int>(small())},
              "reason"};
    case 3:
      return {{.kind = control::FrameKind::notify, .identity = small()}, "reason"};
    case 4:
      return {{.kind = control::FrameKind::regrouped, .rank = 0, .size = 1}};
    default:
      return {{.kind = control::FrameKind::hello,
               .rank = static_cast<int>(small()),
               .size = static_cast<int>(small()),
               .limit = 1,
               .time_left = 1},
              distx::detail::posix::this_process().text()};
  }
}

TEST_CASE("a hundred thousand damaged frames are read without an error, and refused or taken") {
  Noise noise;
  control::Inbox inbox;
  int taken = 0, read = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string bytes;
    control::append_frame(bytes, any_frame(noise));
    bytes = noise.changed(std::move(bytes));
    std::size_t begin = 0;
    const auto frame = control::parse_frame(bytes, begin);
    CHECK_UNARY(begin <= bytes.size());
    if (!frame) continue;
    ++read;
    CHECK_THROWS_AS(control::raise(*frame, {}), distx::Error);
    taken += inbox.take(*frame) ? 1 : 0;
  }
  CHECK(read > 10000);
  CHECK(taken > 100);
  CHECK(taken < read);
}

TEST_CASE("a hundred thousand damaged frames that are thrown at a live job have no effect on it") {
  const int port = free_port();
  std::atomic<bool> over{false};
  std::atomic<int> joined{0}, thrown{0};
  const auto messages = each(4, [&](int rank) {
    if (rank < 3) {
      TcpConnector connector("127.0.0.1", port, rank, 3, {.deadline = seconds(60)});
      ++joined;
      for (;;) {
        check_invariants(connector);
        if (distx::broadcast_value(connector, over.load(), 0)) break;
      }
      for (std::uint64_t identity = 0; identity < 10; ++identity)
        expect(!connector.failure_channel()->poll(identity), "a failure");
      return;
    }
    Noise noise;
    distx::detail::wait_until(seconds(20), [&] { return joined == 3; }, [] { return false; });
    for (int connection = 0; connection < 200; ++connection) {
      auto socket = stranger(port);
      // It knows the token, which is empty, in most cases.
      auto bytes = test::answer_to_challenge(socket, "");
      if (connection % 8 == 0) bytes = noise.changed(std::move(bytes));
      for (int frame = 0; frame < 500; ++frame) {
        std::string next;
        control::append_frame(next, any_frame(noise));
        bytes += noise.changed(std::move(next));
        ++thrown;
      }
      (void)test::send(socket, bytes);
    }
    over = true;
  });
  CHECK(messages == Messages(4));
  CHECK(thrown == 100000);
}

TEST_CASE("a process that joins a job that has all its ranks is refused, and the job continues") {
  const int port = free_port();
  std::string extra, another;
  CHECK(each(2, [&](int rank) {
          TcpConnector connector("127.0.0.1", port, rank, 2, {.deadline = seconds(60)});
          connector.barrier();
          if (rank == 1) {
            extra = error_of<distx::ConnectError>(
                [&] { TcpConnector("127.0.0.1", port, 1, 2, {.deadline = seconds(20)}); });
            another = error_of<distx::ConnectError>(
                [&] { TcpConnector("127.0.0.1", port, 1, 5, {.deadline = seconds(20)}); });
          }
          check_invariants(connector);
        }) == Messages(2));
  CHECK(contains(extra, "two processes have rank 1 (pid "));
  CHECK(contains(another, "rank 1 expects 5 ranks, rank 0 expects 2"));
}

TEST_CASE("a message of a megabyte, and one that is too long") {
  CHECK(each_over_tcp(3, [](TcpConnector& connector) {
          std::vector<std::byte> mine(1 << 20, std::byte(connector.rank() + 1)), all(3 << 20);
          connector.all_gather(mine, all);
          for (std::size_t rank = 0; rank < 3; ++rank)
            expect(all[rank << 20] == std::byte(rank + 1) && all[(rank << 20) + 1000000] == std::byte(rank + 1),
                   "all_gather");
          connector.broadcast(mine, 2);
          expect(mine == std::vector<std::byte>(1 << 20, std::byte{3}), "broadcast");
          const std::span<std::byte> too_long(mine.data(), control::most_frame_bytes);  // is not read
          const auto error = error_of<distx::InvalidArgument>([&] { connector.broadcast(too_long, 0); });
          expect(contains(error, "a control message has at most 268431360 bytes for all ranks, this one has 268435456"),
                 error);
          connector.barrier();
        }) == Messages(3));
}

TEST_CASE("a token file is read if nobody else may read it") {
  const test::NewFolder folder;
  const auto path = (folder.path() / "token").string();
  std::ofstream(path) << "from a file\nanother line\n";
  ::setenv("DISTX_TOKEN_FILE", path.c_str(), 1);
  ::chmod(path.c_str(), 0640);
  const auto error = [] { return error_of<distx::ConnectError>([] { (void)tcp::token_from_environment(); }); };
  CHECK(contains(error(), "DISTX_TOKEN_FILE '" + path + "' is open to other users: set its mode to 0600"));
  ::chmod(path.c_str(), 0600);
  CHECK(tcp::token_from_environment() == "from a file");
  ::setenv("DISTX_TOKEN", "from the environment", 1);
  CHECK(tcp::token_from_environment() == "from the environment");
  ::unsetenv("DISTX_TOKEN");
  ::setenv("DISTX_TOKEN_FILE", "/there/is/no/such/file", 1);
  CHECK(contains(error(), "cannot be read (No such file or directory)"));
  ::unsetenv("DISTX_TOKEN_FILE");
  CHECK(tcp::token_from_environment().empty());
}

}  // namespace
