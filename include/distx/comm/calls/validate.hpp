// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "distx/comm/calls/collectives.hpp"
#include "distx/core/error.hpp"

// The local checks of a call, and the fingerprint by which the ranks check that they make the same call.
namespace distx::inline DISTX_ABI {

namespace calls {

/// Returns the offset of the block of `rank` in a buffer of one block for each rank, in elements: the sum of the
/// preceding `counts`, or, if `counts` is empty, `equal` for each preceding rank.
[[nodiscard]] inline std::size_t block_offset(Counts counts, std::size_t equal, int rank) noexcept {
  if (counts.empty()) return equal * static_cast<std::size_t>(rank);
  std::size_t offset = 0;
  for (int r = 0; r < rank; ++r) offset += counts[static_cast<std::size_t>(r)];
  return offset;
}
/// Returns the number of elements in the block of `rank`: its entry of `counts`, or `equal` if `counts` is empty.
[[nodiscard]] inline std::size_t block_count(Counts counts, std::size_t equal, int rank) noexcept {
  return counts.empty() ? equal : counts[static_cast<std::size_t>(rank)];
}
/// Returns the number of elements in the blocks of `size` ranks: the sum of `counts`, or `equal` for each rank if
/// `counts` is empty.
[[nodiscard]] inline std::size_t total_count(Counts counts, std::size_t equal, int size) noexcept {
  return block_offset(counts, equal, size);
}

/// The properties of a call that all ranks must agree on; trivially copyable, so ranks can exchange and compare it.
struct Fingerprint {
  std::uint64_t count = 0;   ///< elements, if every rank passes the same number
  std::uint64_t counts = 0;  ///< hash of the counts, if given, and of a list's lengths
  std::uint64_t op = 0;      ///< hash of the op's type and state
  std::uint32_t element_bytes = 0;
  std::int32_t root = 0;
  ElementType type = ElementType::bytes;
  bool in_place = false;                          ///< set only if an algorithm needs it of all ranks
  CollectiveKind kind = CollectiveKind::barrier;  ///< of a call; the default if all ranks request memory
  char name[21] = {};                             ///< a call's label in quotes, or what requests memory

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

}  // namespace calls

namespace detail {

/// The checks of a call. Those of every call are inlined: their conditions take less than a call of them.
template <MemorySpace Space>
class Validation {
 public:
  Validation(const Call<Space>& call, const RankOf& self) : call_(call), self_(self) {}

  [[noreturn]] void fail(const std::string& message) const { throw InvalidArgument(message, self_.context(call_)); }

  void rank_exists(int rank, const char* role) const {
    if (rank < 0 || rank >= self_.size) [[unlikely]]
      fail("invalid " + std::string(role) + " " + std::to_string(rank) + ": must be in [0, " +
           std::to_string(self_.size) + ")");
  }
  void message_fits() const {
    const auto& c = call_;
    if (c.kind != CollectiveKind::receive) rank_exists(c.to, "receiver");
    if (c.kind != CollectiveKind::send) rank_exists(c.from, "sender");
    if (c.tag < 0) fail("invalid tag " + std::to_string(c.tag) + ": must not be negative");
    if (c.kind == CollectiveKind::send_receive) apart(nullptr, nullptr);
  }
  void counts_fit(Counts counts, const char* which) const {
    if (!counts.empty() && counts.size() != static_cast<std::size_t>(self_.size))
      fail(std::string(which) + " has " + std::to_string(counts.size()) + " entries, expected one per rank (" +
           std::to_string(self_.size) + ")");
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
    std::size_t rest = most;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] > most)  // a negative int has become a huge count
        fail(std::string(which) + "[" + std::to_string(r) + "] is " +
             std::to_string(static_cast<std::ptrdiff_t>(counts[r])) + ": must not be negative");
      if (counts[r] > rest) fail(std::string(which) + " add up to more elements than can be addressed");
      rest -= counts[r];
    }
  }
  [[gnu::always_inline]] void same(std::size_t send, std::size_t receive) const {
    if (send != receive) [[unlikely]]
      fail("send has " + std::to_string(send) + " elements, receive has " + std::to_string(receive));
  }
  void holds(const char* which, std::size_t has, std::size_t needs, const char* why) const {
    if (has != needs)
      fail(std::string(which) + " has " + std::to_string(has) + " elements, " + why + " " + std::to_string(needs));
  }
  /// Checks that both spans have the same element type.
  [[gnu::always_inline]] void same_type() const {
    const auto& send = call_.send;
    const auto& receive = call_.receive;
    if (send.type() != receive.type() || send.element_bytes() != receive.element_bytes()) [[unlikely]]
      fail("send has elements of type " + std::string(name_of(send.type())) + " (" +
           std::to_string(send.element_bytes()) + " bytes), receive of type " + std::string(name_of(receive.type())) +
           " (" + std::to_string(receive.element_bytes()) + " bytes)");
  }
  /// Checks that the op reduces elements of the type that is sent.
  [[gnu::always_inline]] void op_fits() const {
    if (call_.op.type() == ElementType::bytes) [[unlikely]]
      fail("elements of type bytes cannot be reduced: pass typed spans, and an op that AnyOp::make or make_op returns");
    if (call_.op.type() != call_.send.type()) [[unlikely]]
      fail("the op reduces elements of type " + std::string(name_of(call_.op.type())) + ", send has elements of type " +
           std::string(name_of(call_.send.type())));
  }
  /// Checks that the spans are disjoint, or coincide as in an in-place call.
  [[gnu::always_inline]] void apart(const std::byte* in_place_send, const std::byte* in_place_receive) const {
    const auto& send = call_.send;
    const auto& receive = call_.receive;
    if (send.empty() || receive.empty() || (send.bytes() == in_place_send && receive.bytes() == in_place_receive))
      return;
    if (send.bytes() < receive.bytes() + receive.size_bytes() && receive.bytes() < send.bytes() + send.size_bytes())
        [[unlikely]]
      fail("send and receive overlap: they must be disjoint, or coincide as for an in-place call");
  }
  void all_to_all_fits() const {
    const auto& c = call_;
    counts_fit(c.counts, "send_counts");
    counts_fit(c.receive_counts, "receive_counts");
    const auto ranks = static_cast<std::size_t>(self_.size);
    if (c.counts.empty() != c.receive_counts.empty())
      fail("send_counts and receive_counts must be given both, or neither");
    if (c.counts.empty()) {
      same(c.send.size(), c.receive.size());
      if (c.send.size() % ranks != 0)
        fail("send has " + std::to_string(c.send.size()) + " elements, not a multiple of the " + std::to_string(ranks) +
             " ranks: pass send_counts and receive_counts");
      return apart(c.receive.bytes(), c.receive.bytes());
    }
    const auto own = static_cast<std::size_t>(self_.rank);
    holds("send", c.send.size(), total_count(c.counts, 0, self_.size), "its counts add up to");
    holds("receive", c.receive.size(), total_count(c.receive_counts, 0, self_.size), "its counts add up to");
    if (c.counts[own] != c.receive_counts[own])
      fail("this rank sends itself " + std::to_string(c.counts[own]) + " elements and receives " +
           std::to_string(c.receive_counts[own]));
    apart(nullptr, nullptr);
  }
  /// Checks a call in which one side has a block for each rank, and the other this rank's block.
  void blocks_fit(bool blocks_received) const {
    const auto& c = call_;
    const std::size_t mine = blocks_received ? c.send.size() : c.receive.size();
    const std::size_t all = blocks_received ? c.receive.size() : c.send.size();
    counts_fit(c.counts, "counts");
    holds(blocks_received ? "send" : "receive", mine, block_count(c.counts, mine, self_.rank), "its count is");
    holds(blocks_received ? "receive" : "send", all, total_count(c.counts, mine, self_.size),
          blocks_received ? "the ranks send in all" : "the ranks receive in all");
    const auto own = block_offset(c.counts, mine, self_.rank) * c.send.element_bytes();
    if (blocks_received)
      apart(c.receive.bytes() + own, c.receive.bytes());
    else
      apart(c.send.bytes(), c.send.bytes() + own);
  }

 private:
  const Call<Space>& call_;
  const RankOf& self_;
};

/// Notes a label in quotes, or the end of a long one.
inline void set_label(Fingerprint& f, std::string_view label) noexcept {
  constexpr std::size_t most = sizeof f.name - 3;
  if (label.size() > most) label.remove_prefix(label.size() - most);
  f.name[0] = f.name[label.size() + 1] = '\'';
  label.copy(f.name + 1, label.size());
}
/// Returns the call's name, and its label if it has one.
[[nodiscard]] inline std::string name_and_label(const Fingerprint& f) {
  if (f.name[0] != '\0' && f.name[0] != '\'') return f.name;
  const std::string name(calls::name_of(f.kind));
  return f.name[0] == '\0' ? name : name + " of " + f.name;
}

/// Refuses a blocking self-send or self-receive whose other side has not been started.
[[noreturn]] inline void throw_self_deadlock(const ErrorContext& context) {
  throw InvalidState(
      "a blocking send or receive to self would deadlock: start the matching receive or send asynchronously first",
      context);
}

/// Returns a hash of a hash and a number.
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t part) noexcept {
  hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
  return hash ^ hash >> 29;
}
/// Returns a 64-bit hash of a fingerprint.
inline std::uint64_t digest_of(const Fingerprint& f) noexcept {
  const std::uint64_t flags = static_cast<std::uint64_t>(f.type) << 1 | static_cast<std::uint64_t>(f.in_place);
  const std::uint64_t sizes = static_cast<std::uint64_t>(f.element_bytes) << 32 | static_cast<std::uint32_t>(f.root);
  // A sum of products with random odd numbers, because these are computed side by side: small calls wait for the hash.
  return mixed((static_cast<std::uint64_t>(f.kind) + 1) * 0xc2b2ae3d27d4eb4full,
               f.count * 0xd6e8feb86659fd93ull + f.counts * 0xa0761d6478bd642full + f.op * 0xe7037ed1a0b428dbull +
                   sizes * 0x8ebc6af09c88c6e3ull + flags * 0x589965cc75374cc3ull);
}

}  // namespace detail

namespace calls {

/// Checks everything that this rank can check alone: sizes, types, counts, root, overlap.
/// @throws InvalidArgument
template <MemorySpace Space>
void validate(const Call<Space>& c, const RankOf& self) {
  using enum CollectiveKind;
  const detail::Validation v(c, self);
  const detail::CallTraits& traits = detail::traits_of(c.kind);
  if (traits.message) return v.message_fits();
  if (traits.rooted) v.rank_exists(c.root, "root");
  if (c.kind == broadcast || c.kind == barrier) return;
  if (traits.reduces) v.op_fits();
  if (traits.rooted && self.rank != c.root) return;
  v.same_type();
  if (c.kind == all_reduce || c.kind == reduce) {
    v.same(c.send.size(), c.receive.size());
    v.apart(c.receive.bytes(), c.receive.bytes());
  } else if (c.kind == all_to_all) {
    v.all_to_all_fits();
  } else {
    v.blocks_fit(c.kind == all_gather || c.kind == gather);
  }
}

/// Returns the properties of this call that all ranks must agree on.
template <MemorySpace Space>
[[nodiscard]] Fingerprint fingerprint(const Call<Space>& c) noexcept {
  const detail::CallTraits& traits = detail::traits_of(c.kind);
  Fingerprint f;
  f.kind = c.kind;
  detail::with_compared_span(c, [&](const auto& span) {
    f.type = span.type();
    f.element_bytes = static_cast<std::uint32_t>(span.element_bytes());
    if (traits.same_count && c.counts.empty()) f.count = span.size();
  });
  if (traits.reduces) f.op = c.op.fingerprint();
  if (traits.rooted) f.root = c.root;
  // Of an all_to_all only their presence is compared: the values differ between ranks.
  if (traits.same_count && !c.counts.empty()) f.counts = traits.exchanges_counts ? 1 : detail::fnv1a(c.counts);
  if (c.kind == CollectiveKind::all_to_all) f.in_place = !c.send.empty() && c.send.data() == c.receive.data();
  f.counts ^= c.lengths;
  if (!c.label.empty()) detail::set_label(f, c.label);
  return f;
}

/// Returns the first difference between this rank's call and another's: `rank 1 passes 8 elements, this rank 10`.
[[nodiscard]] inline std::string difference(const Fingerprint& mine, const Fingerprint& theirs, int their_rank) {
  const std::string who = "rank " + std::to_string(their_rank) + " ";
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  if (mine.kind != theirs.kind || std::string_view(mine.name) != theirs.name)
    return who + "calls " + detail::name_and_label(theirs) + ", this rank " + detail::name_and_label(mine);
  if (mine.type != theirs.type)
    return who + "passes " + std::string(name_of(theirs.type)) + " elements, this rank " +
           std::string(name_of(mine.type));
  if (mine.element_bytes != theirs.element_bytes)
    return who + "passes elements of " + number(theirs.element_bytes) + " bytes, this rank of " +
           number(mine.element_bytes);
  if (mine.count != theirs.count)
    return who + "passes " + number(theirs.count) + " elements, this rank " + number(mine.count);
  if (mine.root != theirs.root)
    return who + "names rank " + std::to_string(theirs.root) + " as root, this rank " + std::to_string(mine.root);
  if (mine.op != theirs.op) return who + "reduces with another op, or with other values in it, than this rank";
  if (mine.counts != theirs.counts && mine.kind == CollectiveKind::barrier)
    return who + "asks for other groups than this rank";
  if (mine.counts != theirs.counts)
    return who + "passes other counts, or a list of other lengths or in another order, than this rank";
  if (mine.in_place != theirs.in_place) return who + "and this rank differ in whether the call is in place";
  return who + "calls something else than this rank";
}

}  // namespace calls

}  // namespace distx::inline DISTX_ABI
