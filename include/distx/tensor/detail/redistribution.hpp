// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/detail/lines.hpp"
#include "distx/tensor/detail/copy_box.hpp"
#include "distx/tensor/detail/mesh_state.hpp"
#include "distx/tensor/detail/redistribution_plan.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Carries out a plan on elements whose type is known only at run time, so that it is compiled once.
///
/// Borrows both memories until it is finished. Contiguous parts are sent and received in place; other parts are packed
/// in the mesh's scratch memory or, if a collective is still in progress when a call returns, in its own memory.
template <MemorySpace Space>
class Redistribution {
 public:
  Redistribution(MeshStateIn<Space>& mesh, const Relayout& wanted, const std::array<AnyOp, max_axes>& ops,
                 Span<const AnyElement, Space> source, Span<AnyElement, Space> target, typename Space::stream stream,
                 const std::source_location& location)
      : mesh_(mesh),
        plan_(wanted, mesh.coordinates),
        ops_(ops),
        source_(source),
        target_(target),
        stream_(stream),
        location_(location) {
    left_ = plan_.collectives();
    plan_memory();
  }
  Redistribution(const Redistribution&) = delete;
  Redistribution& operator=(const Redistribution&) = delete;

  void run() {
    if constexpr (!done_at_return<Space>)
      own_memory();
    else if (bytes_ != 0)
      scratch_ = mesh_.world.scratch(bytes_).data();
    move();
    unpack(stream_);
  }
  /// Completes all collectives but the last, which it starts.
  [[nodiscard]] Pending<Space> start() {
    own_memory();  // before the other stream is made to wait for the mesh's
    Detour<Space> detour(mesh_.stream, stream_);
    later_ = true;
    move();
    if (plan_.collectives() == 0) detour.rejoin();
    detour.went_well();
    return std::move(pending_);
  }
  /// Called after the Pending of `start` was waited for, by this stream or by the host.
  /// @return whether this enqueued any work
  bool finish(typename Space::stream stream = {}) {
    const bool copied = plan_.collectives() == 0;  // then the work is on the mesh's stream only
    if (copied) order<Space>(mesh_.stream, stream);
    return unpack(stream) || copied;
  }

 private:
  static constexpr std::size_t in_target = static_cast<std::size_t>(-1), in_source = static_cast<std::size_t>(-2);

  /// The offset of the boxes in the memory of `whole`, if they are stored there one after another.
  static std::optional<std::size_t> in_order(const Box& whole, const std::vector<Box>& boxes) {
    std::optional<std::size_t> first;
    std::size_t at = 0;
    for (const auto& box : boxes) {
      if (box.volume() == 0) continue;
      if (!first) first = at = offset_in(whole, box);
      if (!is_contiguous_in(whole, box) || offset_in(whole, box) != at) return std::nullopt;
      at += box.volume();
    }
    return first.value_or(0);
  }
  std::size_t reserve(std::size_t elements) {
    const std::size_t at = bytes_;
    bytes_ += round_up_to_lines(elements * width());
    return at;
  }

  void own_memory() {
    owned_ = buffer_on<std::byte, Space>(mesh_.stream, bytes_, uninitialized);
    scratch_ = owned_.data();
  }

  void plan_memory() {
    if (!plan_.reductions.empty()) {
      blocks_at_ = in_order(plan_.source, plan_.blocks);
      std::size_t now = blocks_at_ ? in_source : packed_ = reserve(volume_of(plan_.blocks));
      for (std::size_t i = 0; i < plan_.reductions.size(); ++i) {
        const auto& step = plan_.reductions[i];
        if (i + 1 == plan_.reductions.size() && !plan_.exchange)
          now = in_target;
        else if (step.scatters() || now == in_source)
          now = reserve(step.result());
        results_.push_back(now);
      }
    }
    if (plan_.exchange) {
      auto& step = *plan_.exchange;
      receive_at_ = in_order(plan_.target, step.in);
      if (!step.gathers) {
        send_at_ = in_order(plan_.middle, step.out);
        if (!send_at_ && !receive_at_) {
          // Copied directly instead of being packed, sent to itself and unpacked.
          kept_ = step.out[step.own];
          step.out[step.own].size = step.in[step.own].size = {};
          step.out[step.own].dimensions = step.in[step.own].dimensions = 1;
        }
        if (!send_at_) sent_ = reserve(volume_of(step.out));
      }
      if (!receive_at_) received_ = reserve(volume_of(step.in));
      for (const auto& box : step.out) out_counts_.push_back(box.volume());
      for (const auto& box : step.in) in_counts_.push_back(box.volume());
    }
  }

  void move() {
    const std::byte* now = source_.bytes();
    if (!plan_.reductions.empty()) {
      if (blocks_at_)
        now += *blocks_at_ * width();
      else
        now = pack(packed_, plan_.source, now, plan_.blocks);
      for (std::size_t i = 0; i < results_.size(); ++i) now = reduce(plan_.reductions[i], now, results_[i]);
    }
    if (plan_.exchange)
      exchange(*plan_.exchange, now);
    else if (plan_.reductions.empty() && now != target_.bytes())
      copy_box(stream_, target_.bytes(), plan_.target, now, plan_.source, plan_.target, width());
  }

  const std::byte* reduce(const ReduceStep& step, const std::byte* from, std::size_t result) {
    std::byte* const to = result == in_target ? target_.bytes() : scratch_ + result;
    auto& comm = mesh_.over(1U << step.axis);
    if (step.scatters())
      make(comm, ReduceScatter<AnyElement, AnyOp, Space>{in(from, step.size), out(to, step.result()), ops_[step.axis],
                                                         named(step.counts), location_});
    else
      make(comm,
           AllReduce<AnyElement, AnyOp, Space>{in(from, step.size), out(to, step.size), ops_[step.axis], location_});
    return to;
  }

  void exchange(const ExchangeStep& step, const std::byte* from) {
    auto& comm = mesh_.over(step.axes);
    std::byte* const to = receive_at_ ? target_.bytes() + *receive_at_ * width() : scratch_ + received_;
    const std::size_t received = volume_of(step.in);
    if (step.gathers) {
      make(comm, AllGather<AnyElement, Space>{in(from, plan_.middle.volume()), out(to, received), named(in_counts_),
                                              location_});
      return;
    }
    if (kept_.volume() != 0) copy_box(stream_, target_.bytes(), plan_.target, from, plan_.middle, kept_, width());
    from = send_at_ ? from + *send_at_ * width() : pack(sent_, plan_.middle, from, step.out);
    make(comm, AllToAll<AnyElement, Space>{in(from, volume_of(step.out)), out(to, received), out_counts_, in_counts_,
                                           location_});
  }

  bool unpack(typename Space::stream stream) {
    if (!plan_.exchange || receive_at_) return false;
    unpack_boxes(stream, target_.bytes(), plan_.target, scratch_ + received_, plan_.exchange->in, width());
    return true;
  }

  const std::byte* pack(std::size_t at, const Box& whole, const std::byte* from, const std::vector<Box>& boxes) {
    pack_boxes(stream_, scratch_ + at, from, whole, boxes, width());
    return scratch_ + at;
  }

  template <class Call>
  void make(AnyCommunicator<Space>& comm, const Call& call) {
    if (--left_ == 0 && later_)
      pending_ = comm.start(call, stream_);
    else
      make_in_order(comm, call, stream_);
  }
  /// No counts if all are equal.
  static Counts named(const std::vector<std::size_t>& counts) noexcept {
    for (const auto count : counts)
      if (count != counts.front()) return counts;
    return {};
  }
  [[nodiscard]] Span<const AnyElement, Space> in(const std::byte* data, std::size_t size) const noexcept {
    return {data, size, source_.type(), width()};
  }
  [[nodiscard]] Span<AnyElement, Space> out(std::byte* data, std::size_t size) const noexcept {
    return {data, size, source_.type(), width()};
  }
  [[nodiscard]] std::size_t width() const noexcept { return source_.element_bytes(); }

  MeshStateIn<Space>& mesh_;
  RedistributionPlan plan_;
  std::array<AnyOp, max_axes> ops_;
  Span<const AnyElement, Space> source_;
  Span<AnyElement, Space> target_;
  typename Space::stream stream_;
  std::source_location location_;

  std::size_t bytes_ = 0;                                        // of scratch memory; the offsets below refer to it
  std::optional<std::size_t> blocks_at_, send_at_, receive_at_;  // in elements; set where no packing is needed
  std::size_t packed_ = 0, sent_ = 0, received_ = 0;
  std::vector<std::size_t> results_;
  std::vector<std::size_t> out_counts_, in_counts_;
  Box kept_{1, {}, {}};

  std::byte* scratch_ = nullptr;
  Buffer<std::byte, Space> owned_;
  Pending<Space> pending_;
  std::size_t left_ = 0;
  bool later_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
