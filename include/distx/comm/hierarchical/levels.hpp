// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/validate.hpp"
#include "distx/comm/communicator.hpp"
#include "distx/comm/hierarchical/errors.hpp"
#include "distx/comm/hierarchical/host_memory.hpp"
#include "distx/comm/hierarchical/hosts.hpp"
#include "distx/comm/runtime/peer_views.hpp"
#include "distx/memory/detail/widened.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Two communicators that act as one, for one queue of calls (blocking or asynchronous); used by one thread.
///
/// `Inner` has the ranks of one host, `Outer` all ranks. A column consists of the ranks with one index on all hosts; it
/// is full if every host has that index. A call's elements are partitioned into one slice per full column, and each
/// full column transfers its slice across hosts.
template <class Inner, class Outer>
class HierarchicalLevels {
 public:
  /// Collective over `out`.
  HierarchicalLevels(Inner in, Outer out, const Hosts& hosts, const RankOf& own,
                     std::shared_ptr<const HostMemory> host_memory)
      : inner(std::move(in)),
        outer(std::move(out)),
        column(outer.split(hosts.index(own.rank), hosts.host(own.rank))),
        hosts_(hosts),
        self_(own),
        host_memory_(std::move(host_memory)),
        host_(hosts.host(own.rank)),
        index_(hosts.index(own.rank)) {
    for (int m = 0; m < hosts.count(); ++m)
      column_ranks_.push_back(
          index_ < static_cast<int>(hosts.ranks(m).size()) ? hosts.ranks(m)[static_cast<std::size_t>(index_)] : -1);
    std::erase(column_ranks_, -1);
  }

  /// Checks that all ranks make the same call. @throws MismatchError on every rank otherwise
  void run(const Call<Host>& call) {
    using enum CollectiveKind;
    context_ = self_.context(call);
    agree(fingerprint(call));
    if (call.kind == barrier) return;  // the comparison is one
    if (call.kind == all_reduce) return run_all_reduce(call);
    if (call.kind == reduce) return run_reduce(call);
    if (call.kind == reduce_scatter) return run_reduce_scatter(call);
    if (call.kind == broadcast) return run_broadcast(call);
    if (call.kind == all_gather) return run_all_gather(call);
    flat(call);  // every block crosses hosts exactly once on any route
  }
  /// Checks that all ranks request the same number of elements of the same size. @throws MismatchError on every rank
  /// otherwise
  void agree_on(std::size_t count, std::size_t element_bytes, const ErrorContext& context) {
    context_ = context;
    Fingerprint request;
    request.count = count;
    request.element_bytes = static_cast<std::uint32_t>(element_bytes);
    context.operation.copy(request.name, sizeof request.name - 1);
    agree(request);
  }
  void revoke(const std::string& reason) {
    inner.revoke(reason);
    outer.revoke(reason);
    column.revoke(reason);
  }

  Inner inner;
  Outer outer;
  Outer column;

 private:
  using Send = Span<const AnyElement>;
  using Receive = Span<AnyElement>;

  /// The call of the first rank of a host or of all ranks, and one that differs from it, if any.
  struct Verdict {
    Fingerprint first{}, odd{};
    int first_rank = 0, odd_rank = -1;
  };

  void inside(const Call<Host>& call) {
    with_global_ranks(hosts_.ranks(host_), context_, [&] { inner.execute(call); });
  }
  void across(const Call<Host>& call) {
    with_global_ranks(column_ranks_, context_, [&] { column.execute(call); });
  }
  void flat(const Call<Host>& call) {
    with_global_ranks({}, context_, [&] { outer.execute(call); });
  }
  [[nodiscard]] int ranks_here() const { return static_cast<int>(hosts_.ranks(host_).size()); }
  [[nodiscard]] bool leads() const noexcept { return index_ == 0; }
  [[nodiscard]] bool has_slice() const noexcept { return index_ < hosts_.smallest(); }
  [[nodiscard]] std::source_location where() const noexcept { return context_.location; }

  /// Gathers inside each host, compares across hosts on their first ranks, and broadcasts the result inside.
  void agree(const Fingerprint& mine) {
    here_.assign(static_cast<std::size_t>(ranks_here()), mine);
    verdicts_.resize(static_cast<std::size_t>(hosts_.count()));
    if (ranks_here() > 1) inside(Gather<Fingerprint>{{&mine, 1}, here_, 0, {}, where()});
    if (leads()) {
      Verdict verdict{here_.front(), here_.front(), self_.rank, -1};
      for (std::size_t index = here_.size(); index-- > 1;)
        if (here_[index] != verdict.first) {
          verdict.odd = here_[index];
          verdict.odd_rank = hosts_.ranks(host_)[index];
        }
      across(AllGather<Verdict>{{&verdict, 1}, verdicts_, {}, where()});
    }
    if (ranks_here() > 1) inside(Broadcast<Verdict>{verdicts_, 0, where()});
    for (const Verdict& verdict : verdicts_) {
      if (verdict.first != mine) throw MismatchError(difference(mine, verdict.first, verdict.first_rank), context_);
      if (verdict.odd_rank >= 0 && verdict.odd != mine)
        throw MismatchError(difference(mine, verdict.odd, verdict.odd_rank), context_);
    }
  }

  /// Partitions n elements into slices that begin on cache lines; ranks without a full column get empty slices.
  void partition(std::size_t n, std::size_t element_bytes) {
    const std::size_t step = std::max<std::size_t>(1, alignment_bytes / element_bytes);
    const auto parts = static_cast<std::size_t>(hosts_.smallest());
    const auto begin = [&](std::size_t part) {
      const std::size_t at = n / parts * part + n % parts * part / parts;
      return part == parts ? n : std::min(n, (at + step - 1) / step * step);
    };
    slices_.assign(static_cast<std::size_t>(ranks_here()), 0);
    for (std::size_t part = 0; part < parts; ++part) slices_[part] = begin(part + 1) - begin(part);
  }
  template <class AnySpan>
  [[nodiscard]] AnySpan slice(const AnySpan& all) const {
    return all.subspan(block_offset(slices_, 0, index_), slices_[static_cast<std::size_t>(index_)]);
  }
  /// Computes the counts of the ranks of this host and of whole hosts from the counts of all ranks.
  void count_blocks(Counts counts, std::size_t equal) {
    blocks_here_.clear();
    for (const int rank : hosts_.ranks(host_)) blocks_here_.push_back(block_count(counts, equal, rank));
    blocks_of_hosts_.assign(static_cast<std::size_t>(hosts_.count()), 0);
    for (int rank = 0; rank < self_.size; ++rank)
      blocks_of_hosts_[static_cast<std::size_t>(hosts_.host(rank))] += block_count(counts, equal, rank);
  }
  /// Returns this host's part of a span that is partitioned by counts. @pre hosts_.consecutive()
  template <class AnySpan>
  [[nodiscard]] AnySpan part_of_host(const AnySpan& all) const {
    return all.subspan(block_offset(blocks_of_hosts_, 0, host_), blocks_of_hosts_[static_cast<std::size_t>(host_)]);
  }

  /// @name Reductions in steps
  /// Steps leave out the op's `finish`; reduced-precision types stay in float from the first step to the last.
  /// @{
  /// The op of the steps, and this rank's operand.
  struct Steps {
    bool wide;
    AnyOp op;
    Send send;
  };
  [[nodiscard]] Steps steps_of(const Call<Host>& c) {
    if (!is_narrow_float(c.op.type())) return {false, c.op.unfinished(), c.send};
    const Receive to = staging(0, c.send.size(), Span<const float>());
    widen(c.send, static_cast<float*>(to.data()));
    return {true, c.op.widened().unfinished(), to};
  }
  /// Returns whether the steps keep rank order: they combine by rank inside and by host across, so ranks must be
  /// consecutive.
  [[nodiscard]] bool keeps_order(const AnyOp& op) const noexcept { return op.commutative() || hosts_.consecutive(); }
  [[nodiscard]] Receive staging(std::size_t which, std::size_t count, const Send& like) {
    auto& memory = staging_[which];
    if (memory.size() < count * like.element_bytes()) memory = Buffer<std::byte>(count * like.element_bytes());
    return {memory.data(), count, like.type(), like.element_bytes()};
  }
  /// Computes the last step of a reduction on this rank's elements: from `sums` to `target`.
  void finish(const AnyOp& op, const Receive& sums, const Receive& target) const {
    if (sums.empty()) return;
    void* const at = sums.data();
    const void* const source = at;
    const AnyOp wide = is_narrow_float(op.type()) ? op.widened() : op;
    if (wide.finishes()) wide.reduce(&at, 1, &source, 1, sums.size(), self_.size);
    if (target.type() != sums.type()) narrow(static_cast<const float*>(source), target);
  }
  /// @}

  void run_all_reduce(const Call<Host>& c) {
    if (!keeps_order(c.op)) return flat(c);
    const auto [wide, op, send] = steps_of(c);
    partition(c.send.size(), c.send.element_bytes());
    const Receive sums = slice(wide ? staging(0, c.send.size(), send) : c.receive);
    inside(ReduceScatter<AnyElement, AnyOp>{send, sums, op, slices_, where()});
    if (has_slice()) across(AllReduce<AnyElement, AnyOp>{sums, sums, op, where()});
    finish(c.op, sums, slice(c.receive));
    inside(AllGather<AnyElement>{slice(c.receive), c.receive, slices_, where()});
  }

  void run_reduce(const Call<Host>& c) {
    if (!keeps_order(c.op)) return flat(c);
    const auto [wide, op, send] = steps_of(c);
    const int there = hosts_.host(c.root);
    partition(c.send.size(), c.send.element_bytes());
    const Receive result = staging(1, slices_[static_cast<std::size_t>(index_)], c.send);
    const Receive sums = wide ? slice(staging(0, c.send.size(), send)) : result;
    inside(ReduceScatter<AnyElement, AnyOp>{send, sums, op, slices_, where()});
    if (has_slice()) across(Reduce<AnyElement, AnyOp>{sums, sums, op, there, where()});
    if (host_ != there) return;
    finish(c.op, sums, result);
    const Receive receive = self_.rank == c.root ? c.receive : Receive();
    inside(Gather<AnyElement>{result, receive, hosts_.index(c.root), slices_, where()});
  }

  void run_reduce_scatter(const Call<Host>& c) {
    if (!hosts_.consecutive()) return flat(c);
    const auto [wide, op, send] = steps_of(c);
    count_blocks(c.counts, c.receive.size());
    const Receive sums = !leads() ? Receive() : staging(wide ? 0 : 1, c.send.size(), send);
    inside(Reduce<AnyElement, AnyOp>{send, sums, op, 0, where()});
    Receive result;
    if (leads()) {
      const Receive part = part_of_host(sums);
      across(ReduceScatter<AnyElement, AnyOp>{sums, part, op, blocks_of_hosts_, where()});
      result = wide ? staging(1, part.size(), c.send) : part;
      finish(c.op, part, result);
    }
    inside(Scatter<AnyElement>{result, c.receive, 0, blocks_here_, where()});
  }

  void run_broadcast(const Call<Host>& c) {
    const bool at_root = host_ == hosts_.host(c.root);
    partition(c.receive.size(), c.receive.element_bytes());
    if (at_root) inside(Broadcast<AnyElement>{c.receive, hosts_.index(c.root), where()});
    if (has_slice()) across(Broadcast<AnyElement>{slice(c.receive), hosts_.host(c.root), where()});
    if (!at_root) inside(AllGather<AnyElement>{slice(c.receive), c.receive, slices_, where()});
  }

  void run_all_gather(const Call<Host>& c) {
    if (!hosts_.consecutive()) return flat(c);
    count_blocks(c.counts, c.send.size());
    const Receive part = part_of_host(c.receive);
    if (host_memory_->contains({c.receive.bytes(), c.receive.size_bytes()})) {
      // The comparison of calls was a barrier: no rank reads what was there before.
      const Receive own = part.subspan(block_offset(blocks_here_, 0, index_), c.send.size());
      if (own.data() != c.send.data()) copy_bytes(own.bytes(), c.send.bytes(), own.size_bytes());
      inside(Barrier<Host>{where()});
      if (leads()) across(AllGather<AnyElement>{part, c.receive, blocks_of_hosts_, where()});
      return inside(Barrier<Host>{where()});
    }
    inside(Gather<AnyElement>{c.send, leads() ? part : Receive(), 0, blocks_here_, where()});
    if (leads()) across(AllGather<AnyElement>{part, c.receive, blocks_of_hosts_, where()});
    inside(Broadcast<AnyElement>{c.receive, 0, where()});
  }

  const Hosts& hosts_;
  RankOf self_;
  std::shared_ptr<const HostMemory> host_memory_;
  int host_;
  int index_;
  std::vector<int> column_ranks_;
  ErrorContext context_;
  std::vector<Fingerprint> here_;
  std::vector<Verdict> verdicts_;
  std::vector<std::size_t> slices_, blocks_here_, blocks_of_hosts_;
  Buffer<std::byte> staging_[2];
};

}  // namespace distx::inline DISTX_ABI::detail
