// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Erased calls at random, such as the wrapper of another framework may make: each is refused by every rank, or right.
// The buffers are exactly as long as their spans, so that the sanitizers see every access beyond them.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include <distx/comm/calls/make_op.hpp>
#include <distx/threads.hpp>

#include "comm/outcomes.hpp"

namespace {

using namespace distx::calls;
using distx::ElementType;
using distx::OpKind;
using Kind = CollectiveKind;
using Bytes = std::vector<std::byte>;
using std::size_t;

constexpr size_t ranks = 3;

/// The arguments of one rank's call.
struct Arguments {
  Kind kind{};
  ElementType send_type{}, receive_type{}, op_type{};
  OpKind op{};
  bool has_op = true;
  size_t send = 0, receive = 0;  // elements
  int root = 0;
  std::vector<size_t> counts, receive_counts;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  size_t below(size_t n) { return static_cast<size_t>(engine_() % n); }
  bool one_in(size_t n) { return below(n) == 0; }
  ElementType type() { return static_cast<ElementType>(below(15)); }
  /// A count that fits nothing: huge, or so that sums wrap.
  size_t odd_count() {
    constexpr size_t top = static_cast<size_t>(1) << 63;
    const size_t some[] = {0, 1, 5, 100, top - 1, top, top + 1, ~size_t{0}, top / 2, size_t{1} << 32};
    return some[below(std::size(some))];
  }

 private:
  std::mt19937 engine_;
};

/// A call that is right as long as nothing of it is changed.
std::vector<Arguments> well_formed(Random& random) {
  constexpr Kind kinds[] = {Kind::all_reduce, Kind::reduce, Kind::broadcast, Kind::all_gather, Kind::reduce_scatter,
                            Kind::all_to_all, Kind::gather, Kind::scatter,   Kind::barrier};
  Arguments call;
  call.kind = kinds[random.below(std::size(kinds))];
  call.send_type = call.receive_type = call.op_type = random.one_in(3) ? random.type() : ElementType::i32;
  call.op = static_cast<OpKind>(random.below(9));
  call.root = static_cast<int>(random.below(ranks));
  const size_t n = random.one_in(4) ? random.below(400) : random.below(20);
  const bool counted = random.one_in(2);
  std::vector<size_t> counts(ranks);
  for (auto& count : counts) count = random.below(20);
  const size_t total = counts[0] + counts[1] + counts[2];
  std::vector<Arguments> all(ranks, call);
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto& own = all[rank];
    const bool gathers = call.kind == Kind::all_gather || call.kind == Kind::gather;
    const bool scatters = call.kind == Kind::reduce_scatter || call.kind == Kind::scatter;
    own.send = own.receive = n;
    if (call.kind == Kind::all_to_all) {
      own.send = own.receive = ranks * n;
      if (!counted) continue;
      own.counts.assign(ranks, counts[rank]);  // rank r sends each rank counts[r] elements
      own.receive_counts = counts;
      own.send = ranks * counts[rank];
      own.receive = total;
    } else if (gathers || scatters) {
      (gathers ? own.receive : own.send) = counted ? total : ranks * n;
      if (counted) (gathers ? own.send : own.receive) = counts[rank];
      if (counted) own.counts = counts;
    }
  }
  return all;
}

void spoil(Random& random, Arguments& call) {
  switch (random.below(9)) {
    case 0:
      call.send = std::min<size_t>(random.odd_count(), 1000);
      break;
    case 1:
      call.receive = std::min<size_t>(random.odd_count(), 1000);
      break;
    case 2:
      call.send_type = random.type();
      break;
    case 3:
      call.receive_type = random.type();
      break;
    case 4:
      call.op_type = random.type();
      break;
    case 5:
      call.has_op = false;
      break;
    case 6:
      call.root = static_cast<int>(random.below(7)) - 2;
      break;
    case 7:
      call.counts.resize(random.below(5));
      for (auto& count : call.counts) count = random.odd_count();
      break;
    default:
      call.receive_counts.resize(random.below(5));
      for (auto& count : call.receive_counts) count = random.odd_count();
  }
}

size_t width_of(ElementType type) { return type == ElementType::bytes ? 3 : distx::size_of(type); }

std::byte value(size_t rank, size_t at) { return static_cast<std::byte>((rank * 57 + at * 13) % 251); }

Bytes sent_by(const std::vector<Arguments>& all, size_t rank) {
  Bytes bytes(all[rank].send * width_of(all[rank].send_type));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = value(rank, i);
  return bytes;
}

void append(Bytes& to, const Bytes& from, size_t begin, size_t count) {
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
            from.begin() + static_cast<std::ptrdiff_t>(begin + count));
}

/// What rank `me` receives; nothing where that is not known here.
std::optional<Bytes> expected(const std::vector<Arguments>& all, size_t me) {
  const auto& own = all[me];
  const size_t width = width_of(own.kind == Kind::scatter ? own.receive_type : own.send_type);  // others may be ignored
  const auto root = static_cast<size_t>(own.root);
  const auto count_of = [&](size_t rank, size_t otherwise) {
    return own.counts.empty() ? otherwise : own.counts[rank];
  };
  Bytes result;
  switch (own.kind) {
    case Kind::broadcast:
      return sent_by(all, root);
    case Kind::gather:
      if (me != root) return {};
      [[fallthrough]];
    case Kind::all_gather:
      for (size_t rank = 0; rank < ranks; ++rank) append(result, sent_by(all, rank), 0, all[rank].send * width);
      return result;
    case Kind::scatter: {
      size_t begin = 0;
      const auto& of_root = all[root];
      for (size_t rank = 0; rank < me; ++rank) begin += of_root.counts.empty() ? own.receive : of_root.counts[rank];
      append(result, sent_by(all, root), begin * width, own.receive * width);
      return result;
    }
    case Kind::all_to_all:
      for (size_t rank = 0; rank < ranks; ++rank) {
        size_t begin = 0;
        const auto& other = all[rank];
        const auto block = [&](size_t to) { return other.counts.empty() ? other.send / ranks : other.counts[to]; };
        for (size_t to = 0; to < me; ++to) begin += block(to);
        append(result, sent_by(all, rank), begin * width, block(me) * width);
      }
      return result;
    case Kind::reduce:
      if (me != root) return {};
      [[fallthrough]];
    case Kind::all_reduce:
    case Kind::reduce_scatter: {
      if (own.send_type != ElementType::i32 || (own.op != OpKind::bit_xor && own.op != OpKind::max)) return {};
      size_t begin = 0, count = own.send;
      if (own.kind == Kind::reduce_scatter) {
        for (size_t rank = 0; rank < me; ++rank) begin += count_of(rank, own.receive);
        count = own.receive;
      }
      std::vector<std::int32_t> sums(count);
      for (size_t rank = 0; rank < ranks; ++rank) {
        const Bytes bytes = sent_by(all, rank);
        for (size_t i = 0; i < count; ++i) {
          std::int32_t x = 0;
          std::memcpy(&x, bytes.data() + (begin + i) * 4, 4);
          sums[i] = rank == 0 ? x : own.op == OpKind::bit_xor ? sums[i] ^ x : std::max(sums[i], x);
        }
      }
      const auto* const data = reinterpret_cast<const std::byte*>(sums.data());
      return Bytes(data, data + 4 * count);
    }
    default:
      return {};
  }
}

/// A trial's outcome.
struct Trial {
  std::vector<Arguments> arguments;
  std::vector<Bytes> received = std::vector<Bytes>(ranks);
  int refused = 0;
};

Trial tried(unsigned seed) {
  Random random(seed);
  Trial trial{well_formed(random)};
  if (random.one_in(2)) spoil(random, trial.arguments[random.below(ranks)]);
  if (random.one_in(4)) {  // alike on all ranks
    const Random same = random;
    for (auto& each : trial.arguments) {
      Random again = same;
      spoil(again, each);
    }
  }
  std::mutex lock;
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    const auto rank = static_cast<size_t>(comm.rank());
    const auto& own = trial.arguments[rank];
    Bytes send = sent_by(trial.arguments, rank), receive(own.receive * width_of(own.receive_type));
    if (own.kind == Kind::broadcast) receive = send;
    Call<> call;
    call.kind = own.kind;
    call.receive = {receive.data(), own.receive, own.receive_type, width_of(own.receive_type)};
    call.send = {send.data(), own.send, own.send_type, width_of(own.send_type)};
    if (own.kind == Kind::broadcast) {
      call.receive = {receive.data(), own.send, own.send_type, width_of(own.send_type)};
      call.send = call.receive;
    }
    call.root = own.root;
    call.counts = own.counts;
    call.receive_counts = own.receive_counts;
    try {
      if (own.has_op) call.op = make_op(own.op, own.op_type);
    } catch (const distx::InvalidArgument&) {  // then the call has none
    }
    try {
      comm.execute(call);
      trial.received[rank] = receive;
    } catch (const distx::Error&) {
      const std::lock_guard hold(lock);
      ++trial.refused;
    }
  });
  return trial;
}

}  // namespace

TEST_CASE("a call of random types, counts, op and root is refused by every rank, or right") {
  int right = 0, refused = 0;
  for (unsigned seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    const Trial trial = tried(seed);
    refused += trial.refused == static_cast<int>(ranks) ? 1 : 0;
    if (trial.refused > 0) {
      CHECK(trial.refused == static_cast<int>(ranks));
      continue;
    }
    ++right;
    for (size_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      if (const auto wanted = expected(trial.arguments, rank)) CHECK(trial.received[rank] == *wanted);
    }
  }
  CHECK(right > 500);
  CHECK(refused > 500);
}

TEST_CASE("counts whose sum wraps around are refused") {
  constexpr size_t half = static_cast<size_t>(-1) / 2;
  const auto all = test::outcomes(3, [](distx::ThreadCommunicator& comm) {
    const std::vector<size_t> wrapping{2, half, half};  // 0 in all, modulo 2^64
    std::vector<int> nothing;
    distx::all_to_all(comm, nothing, nothing, wrapping, wrapping);
  });
  CHECK(test::all_say(all, "InvalidArgument", "send_counts add up to more elements than can be addressed"));
}
