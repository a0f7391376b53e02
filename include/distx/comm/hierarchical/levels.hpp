// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/validate.hpp"
#include "distx/comm/communicator.hpp"
#include "distx/comm/hierarchical/errors.hpp"
#include "distx/comm/hierarchical/hosts.hpp"
#include "distx/memory/detail/widened.hpp"

namespace distx::detail {

/// Two communicators that work as one, for one kind of calls (blocking or started); used by one thread.
///
/// `Inner` has the ranks of a machine, `Outer` all ranks. A column is the ranks of one place on all machines. There are
/// as many full columns as the smallest machine has ranks, and the elements of a call are cut into as many slices: so
/// that every rank with a full column carries one of them across.
template <class Inner, class Outer>
class HierarchicalLevels {
 public:
  /// Collective over `out`.
  HierarchicalLevels(Inner in, Outer out, const Machines& machines, const RankOf& own)
      : inner(std::move(in)),
        outer(std::move(out)),
        column(outer.split(machines.place(own.rank), machines.machine(own.rank))),
        machines_(machines),
        self_(own),
        machine_(machines.machine(own.rank)),
        place_(machines.place(own.rank)) {
    for (int m = 0; m < machines.count(); ++m)
      column_ranks_.push_back(place_ < static_cast<int>(machines.ranks(m).size())
                                  ? machines.ranks(m)[static_cast<std::size_t>(place_)]
                                  : -1);
    std::erase(column_ranks_, -1);
  }

  /// @throws MismatchError on every rank where the ranks do not make the same call
  template <Collective Call>
  void run(const Call& call) {
    context_ = self_.context(call);
    agree(fingerprint(call));
    work(call);
  }
  /// Whether all ranks want as many elements of that size.
  void agree_on(std::size_t count, std::size_t element_bytes, const ErrorContext& context) {
    context_ = context;
    Fingerprint wish;
    wish.operation = fnv1a(context.operation);
    wish.count = count;
    wish.element_bytes = static_cast<std::uint32_t>(element_bytes);
    context.operation.copy(wish.name, sizeof wish.name - 1);
    agree(wish);
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

  /// What a machine's ranks call: the call of the first, and one that differs from it, if one does.
  struct Verdict {
    Fingerprint first{}, odd{};
    int first_rank = 0, odd_rank = -1;
  };

  template <Collective Call>
  void inside(const Call& call) {
    as_seen_by_all(machines_.ranks(machine_), context_, [&] { inner.execute(call); });
  }
  template <Collective Call>
  void across(const Call& call) {
    as_seen_by_all(column_ranks_, context_, [&] { column.execute(call); });
  }
  template <Collective Call>
  void flat(const Call& call) {
    as_seen_by_all({}, context_, [&] { outer.execute(call); });
  }
  [[nodiscard]] int ranks_here() const { return static_cast<int>(machines_.ranks(machine_).size()); }
  [[nodiscard]] bool leads() const noexcept { return place_ == 0; }
  [[nodiscard]] bool has_slice() const noexcept { return place_ < machines_.smallest(); }
  [[nodiscard]] std::source_location where() const noexcept { return context_.location; }

  /// Gathered inside, compared across by the machines' first ranks, told inside.
  void agree(const Fingerprint& mine) {
    here_.assign(static_cast<std::size_t>(ranks_here()), mine);
    verdicts_.resize(static_cast<std::size_t>(machines_.count()));
    if (ranks_here() > 1) inside(erase(Gather<Fingerprint>{{&mine, 1}, here_, 0, {}, where()}));
    if (leads()) {
      Verdict verdict{here_.front(), here_.front(), self_.rank, -1};
      for (std::size_t place = here_.size(); place-- > 1;)
        if (here_[place] != verdict.first) {
          verdict.odd = here_[place];
          verdict.odd_rank = machines_.ranks(machine_)[place];
        }
      across(erase(AllGather<Verdict>{{&verdict, 1}, verdicts_, {}, where()}));
    }
    if (ranks_here() > 1) inside(erase(Broadcast<Verdict>{verdicts_, 0, where()}));
    for (const Verdict& verdict : verdicts_) {
      if (verdict.first != mine) throw MismatchError(difference(mine, verdict.first, verdict.first_rank), context_);
      if (verdict.odd_rank >= 0 && verdict.odd != mine)
        throw MismatchError(difference(mine, verdict.odd, verdict.odd_rank), context_);
    }
  }

  /// Cuts n elements into slices that begin on lines of memory; none for places without a full column.
  void cut(std::size_t n, std::size_t element_bytes) {
    const std::size_t step = std::max<std::size_t>(1, alignment_bytes / element_bytes);
    const auto parts = static_cast<std::size_t>(machines_.smallest());
    const auto begin = [&](std::size_t part) {
      const std::size_t at = n / parts * part + n % parts * part / parts;
      return part == parts ? n : std::min(n, (at + step - 1) / step * step);
    };
    slices_.assign(static_cast<std::size_t>(ranks_here()), 0);
    for (std::size_t part = 0; part < parts; ++part) slices_[part] = begin(part + 1) - begin(part);
  }
  template <class AnySpan>
  [[nodiscard]] AnySpan slice(const AnySpan& all) const {
    return all.subspan(block_offset(slices_, 0, place_), slices_[static_cast<std::size_t>(place_)]);
  }
  /// Counts for the ranks of this machine and for whole machines, of counts for all ranks.
  void count_blocks(Counts counts, std::size_t equal) {
    blocks_here_.clear();
    for (const int rank : machines_.ranks(machine_)) blocks_here_.push_back(block_count(counts, equal, rank));
    blocks_of_machines_.assign(static_cast<std::size_t>(machines_.count()), 0);
    for (int rank = 0; rank < self_.size; ++rank)
      blocks_of_machines_[static_cast<std::size_t>(machines_.machine(rank))] += block_count(counts, equal, rank);
  }
  /// This machine's part of a span whose blocks are counted. @pre machines_.consecutive()
  template <class AnySpan>
  [[nodiscard]] AnySpan part_of_machine(const AnySpan& all) const {
    return all.subspan(block_offset(blocks_of_machines_, 0, machine_),
                       blocks_of_machines_[static_cast<std::size_t>(machine_)]);
  }

  /// @name Reductions in steps
  /// Steps leave out the op's `finish`; shorter floats are float from the first to the last.
  /// @{
  [[nodiscard]] static AnyOp step_of(const AnyOp& op) noexcept {
    return (is_narrow_float(op.type()) ? op.widened() : op).unfinished();
  }
  /// Inner steps go by rank, and outer ones by machine: which is the order of ranks only where those follow each other.
  [[nodiscard]] bool keeps_order(const AnyOp& op) const noexcept { return op.commutative() || machines_.consecutive(); }
  [[nodiscard]] Receive staged(std::size_t which, std::size_t count, const Send& like) {
    auto& memory = staging_[which];
    if (memory.size() < count * like.element_bytes()) memory = Buffer<std::byte>(count * like.element_bytes());
    return {memory.data(), count, like.type(), like.element_bytes()};
  }
  [[nodiscard]] Receive widened(const Send& from) {
    const Receive to = staged(0, from.size(), Span<const float>());
    widen(from, static_cast<float*>(to.data()));
    return to;
  }
  /// The last step of a reduction, on the elements that this rank has: from `sums` to `target`.
  void finish(const AnyOp& op, const Receive& sums, const Receive& target) const {
    if (sums.empty()) return;
    void* const at = sums.data();
    const void* const source = at;
    const AnyOp wide = is_narrow_float(op.type()) ? op.widened() : op;
    if (wide.finishes()) wide.reduce(&at, 1, &source, 1, sums.size(), self_.size);
    if (target.type() != sums.type()) narrow(static_cast<const float*>(source), target);
  }
  /// @}

  void work(const AllReduce<AnyElement, AnyOp>& c) {
    if (!keeps_order(c.op)) return flat(c);
    const bool wide = is_narrow_float(c.op.type());
    const AnyOp op = step_of(c.op);
    cut(c.send.size(), c.send.element_bytes());
    const Send send = wide ? Send(widened(c.send)) : c.send;
    const Receive sums = slice(wide ? staged(0, c.send.size(), send) : c.receive);
    inside(ReduceScatter<AnyElement, AnyOp>{send, sums, op, slices_, where()});
    if (has_slice()) across(AllReduce<AnyElement, AnyOp>{sums, sums, op, where()});
    finish(c.op, sums, slice(c.receive));
    inside(AllGather<AnyElement>{slice(c.receive), c.receive, slices_, where()});
  }

  void work(const Reduce<AnyElement, AnyOp>& c) {
    if (!keeps_order(c.op)) return flat(c);
    const bool wide = is_narrow_float(c.op.type());
    const AnyOp op = step_of(c.op);
    const int there = machines_.machine(c.root);
    cut(c.send.size(), c.send.element_bytes());
    const Send send = wide ? Send(widened(c.send)) : c.send;
    const Receive result = staged(1, slices_[static_cast<std::size_t>(place_)], c.send);
    const Receive sums = wide ? slice(staged(0, c.send.size(), send)) : result;
    inside(ReduceScatter<AnyElement, AnyOp>{send, sums, op, slices_, where()});
    if (has_slice()) across(Reduce<AnyElement, AnyOp>{sums, sums, op, there, where()});
    if (machine_ != there) return;
    finish(c.op, sums, result);
    const Receive receive = self_.rank == c.root ? c.receive : Receive();
    inside(Gather<AnyElement>{result, receive, machines_.place(c.root), slices_, where()});
  }

  void work(const ReduceScatter<AnyElement, AnyOp>& c) {
    if (!machines_.consecutive()) return flat(c);
    const bool wide = is_narrow_float(c.op.type());
    const AnyOp op = step_of(c.op);
    count_blocks(c.counts, c.receive.size());
    const Send send = wide ? Send(widened(c.send)) : c.send;
    const Receive sums = !leads() ? Receive() : staged(wide ? 0 : 1, c.send.size(), send);
    inside(Reduce<AnyElement, AnyOp>{send, sums, op, 0, where()});
    Receive result;
    if (leads()) {
      const Receive part = part_of_machine(sums);
      across(ReduceScatter<AnyElement, AnyOp>{sums, part, op, blocks_of_machines_, where()});
      result = wide ? staged(1, part.size(), c.send) : part;
      finish(c.op, part, result);
    }
    inside(Scatter<AnyElement>{result, c.receive, 0, blocks_here_, where()});
  }

  void work(const Broadcast<AnyElement>& c) {
    const bool at_root = machine_ == machines_.machine(c.root);
    cut(c.buffer.size(), c.buffer.element_bytes());
    if (at_root) inside(Broadcast<AnyElement>{c.buffer, machines_.place(c.root), where()});
    if (has_slice()) across(Broadcast<AnyElement>{slice(c.buffer), machines_.machine(c.root), where()});
    if (!at_root) inside(AllGather<AnyElement>{slice(c.buffer), c.buffer, slices_, where()});
  }

  void work(const AllGather<AnyElement>& c) {
    if (!machines_.consecutive()) return flat(c);
    count_blocks(c.counts, c.send.size());
    const Receive part = part_of_machine(c.receive);
    inside(Gather<AnyElement>{c.send, leads() ? part : Receive(), 0, blocks_here_, where()});
    if (leads()) across(AllGather<AnyElement>{part, c.receive, blocks_of_machines_, where()});
    inside(Broadcast<AnyElement>{c.receive, 0, where()});
  }

  // Every block of these crosses once whatever the way, so that they go straight.
  void work(const AllToAll<AnyElement>& c) { flat(c); }
  void work(const Gather<AnyElement>& c) { flat(c); }
  void work(const Scatter<AnyElement>& c) { flat(c); }
  // Who agrees has met all others.
  void work(const Barrier<Host>&) {}

  const Machines& machines_;
  RankOf self_;
  int machine_;
  int place_;
  std::vector<int> column_ranks_;
  ErrorContext context_;
  std::vector<Fingerprint> here_;
  std::vector<Verdict> verdicts_;
  std::vector<std::size_t> slices_, blocks_here_, blocks_of_machines_;
  Buffer<std::byte> staging_[2];
};

}  // namespace distx::detail
