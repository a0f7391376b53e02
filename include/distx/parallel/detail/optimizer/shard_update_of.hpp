// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <span>

#include "distx/comm/ops.hpp"
#include "distx/optim/fused_update.hpp"
#include "distx/optim/mixed.hpp"
#include "distx/parallel/detail/base/typed.hpp"
#include "distx/parallel/detail/optimizer/shard_state.hpp"
#include "distx/parallel/detail/optimizer/shard_update.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Averages the gradients of all ranks and updates `count` weights, a multiple of Lanes<A, Bytes>::size.
template <class Optimizer, class A>
struct AverageAndUpdateLanes {
  /// How far ahead memory is prefetched: more arrays are in use than in `fused_update`, and 2048 bytes were slower.
  static constexpr std::size_t ahead_bytes = 512;

  template <std::size_t Bytes>
  static void run(const coefficients_t<Optimizer, A>& coefficients, A* weight, const void* const* gradients,
                  std::size_t ranks, const std::array<A*, Optimizer::states>& state, std::size_t count) {
    using V = Lanes<A, Bytes>;
    const auto of = [&](std::size_t rank) { return static_cast<const A*>(gradients[rank]); };
    for (std::size_t i = 0; i < count; i += V::size) {
      if (i % (alignment_bytes / sizeof(A)) == 0) {  // once a cache line
        const std::size_t ahead = std::min(i + ahead_bytes / sizeof(A), count - 1);
        __builtin_prefetch(weight + ahead, 1);
        for (std::size_t r = 0; r < ranks; ++r) __builtin_prefetch(of(r) + ahead, 0);
        for (std::size_t s = 0; s < Optimizer::states; ++s) __builtin_prefetch(state[s] + ahead, 1);
      }
      V sum = V::load(of(0) + i);
      for (std::size_t r = 1; r < ranks; ++r) sum += V::load(of(r) + i);
      update_at<Optimizer>(i, coefficients, weight, sum / V(static_cast<A>(ranks)), state);
    }
  }
};

/// Updates all elements of `weight` by the average of all ranks' gradients, in one pass that stores no average.
///
/// The bits are those of a reduction with `average` followed by `fused_update`.
/// @param gradients  where each rank's gradients of these weights begin, in rank order
template <ElementwiseOptimizer Optimizer, std::floating_point A>
void average_and_update(const Optimizer& optimizer, const Step& step, Span<A> weight,
                        std::span<const void* const> gradients, const std::array<Span<A>, Optimizer::states>& state) {
  const auto coefficients = optimizer.template coefficients<A>(step);
  const std::size_t lane_bytes = update_lane_bytes<Optimizer, A>();
  const std::size_t lanes = lane_bytes / sizeof(A);
  const std::size_t whole = weight.size() / lanes * lanes, rest = weight.size() - whole;
  std::array<A*, Optimizer::states> states;
  for (std::size_t s = 0; s < Optimizer::states; ++s) states[s] = state[s].data();
  update_lanes<Optimizer, A, AverageAndUpdateLanes<Optimizer, A>>(lane_bytes, coefficients, weight.data(),
                                                                  gradients.data(), gradients.size(), states, whole);
  if (rest == 0) return;
  std::array<A, Lanes<A, 64>::size> averages;  // fewer than a register holds
  for (std::size_t i = 0; i < rest; ++i) {
    A sum = static_cast<const A*>(gradients[0])[whole + i];
    for (std::size_t r = 1; r < gradients.size(); ++r) sum += static_cast<const A*>(gradients[r])[whole + i];
    averages[i] = average.finish(sum, static_cast<int>(gradients.size()));
  }
  auto rests = state;
  for (auto& each : rests) each = each.subspan(whole, rest);
  fused_update(HostStream{}, optimizer, step, weight.subspan(whole, rest), Span<const A>(averages.data(), rest), rests);
}

/// Updates weights of T, or, with T float, the master weights of 16-bit weights.
template <MemorySpace Space, ShardableOptimizer Optimizer, FloatingElement T>
class ShardUpdateOf final : public ShardUpdate<Space> {
  using A = accumulator_t<T>;
  using stream = typename Space::stream;

 public:
  ShardUpdateOf(const Optimizer& optimizer, const ShardDescription& shard,
                const std::shared_ptr<OptimizerWorkspace<Space>>& workspace, const StateAllocator<Space>& allocate)
      : optimizer_(optimizer),
        parameters_(shard.parameters),
        state_(
            shard, [](const FragmentDescription& fragment) { return states_of(fragment); }, allocate),
        workspace_(workspace) {
    std::size_t all = 0;
    for (const auto& fragment : shard.fragments) {
      works_.push_back(all);
      if (NormOptimizer<Optimizer> && directs_apart()) all += padded(fragment.size);
      workspace_->reserve(work_of(fragment) * sizeof(A));
    }
    if constexpr (NormOptimizer<Optimizer>) {
      const std::size_t begin = workspace_->reserve(all * sizeof(A), shard.together) / sizeof(A);
      for (auto& work : works_) work += begin;
    }
  }

  void update(stream after, const FragmentSteps<Space>& fragments, const GradientFactor& factor,
              [[maybe_unused]] const std::byte* coefficients, AnyCommunicator<Space>* comm,
              const std::source_location& location) override {
    if constexpr (NormOptimizer<Optimizer>) {
      SharedNorms<Space> norms(2 * parameters_);
      update_by_norms(NormPhase::direct, after, fragments, factor, norms, {});
      norms.agree(after, comm, location);
      update_by_norms(NormPhase::add, after, fragments, factor, norms, {});
      norms.sum(after, comm, location);
      update_by_norms(NormPhase::apply, after, fragments, factor, norms, {});
    } else if constexpr (ElementwiseOptimizer<Optimizer>) {
      by_elements(after, optimizer_, fragments, factor, coefficients);
    } else {
      FragmentSteps<Space> others;  // for one launch
      for (const auto& each : fragments) {
        if (MatrixOptimizer<Optimizer> || state_[each.index].matrix.size() > 0)
          with_matrices([&](const auto& optimizer) { by_matrix(after, optimizer, each, factor); });
        else
          others.push_back(each);
      }
      if constexpr (is_mixed<Optimizer>) by_elements(after, optimizer_.others, others, factor, nullptr);
    }
  }
  void update_by_norms([[maybe_unused]] NormPhase phase, [[maybe_unused]] stream after,
                       [[maybe_unused]] const FragmentSteps<Space>& fragments,
                       [[maybe_unused]] const GradientFactor& factor, [[maybe_unused]] SharedNorms<Space>& norms,
                       [[maybe_unused]] const std::vector<NormNumber>& numbers) override {
    if constexpr (NormOptimizer<Optimizer>) {
      if (phase == NormPhase::direct) directed_ = direct_all(after, optimizer_, fragments, factor);
      std::vector<double> trusts;
      trusts.reserve(fragments.size());
      for (std::size_t i = 0; i < fragments.size(); ++i) {
        const auto& each = fragments[i];
        const auto& fragment = state_[each.index];
        const NormNumber at = numbers.empty() ? NormNumber{fragment.parameter} : numbers[each.fragment.parameter];
        const std::size_t of_weight = 2 * at.number, of_direction = of_weight + 1;
        if (phase == NormPhase::direct) {
          norms.look(after, of_weight, directed_[i].weight);
          norms.look(after, of_direction, directed_[i].direction);
        } else if (phase == NormPhase::add && at.adds) {
          norms.add(after, of_weight, directed_[i].weight);
          norms.add(after, of_direction, directed_[i].direction);
        } else if (phase == NormPhase::apply) {
          trusts.push_back(Optimizer::trust(norms.norm(of_weight), norms.norm(of_direction)));
        }
      }
      if (phase == NormPhase::apply) apply_all(after, optimizer_, fragments, factor, directed_, trusts);
    }
  }
  Span<AnyElement, Space> direct(stream after, const FragmentStep<Space>& each, const GradientFactor& factor) override {
    Span<AnyElement, Space> direction;
    with_matrices(
        [&](const auto& optimizer) { direction = direct_all(after, optimizer, {each}, factor)[0].direction; });
    return direction;
  }
  void apply(stream after, const FragmentStep<Space>& each, Span<AnyElement, Space> direction,
             double scale_by) override {
    with_matrices([&](const auto& optimizer) {
      Work part;
      part.weight = {static_cast<T*>(each.fragment.weight.data()), direction.size()};
      if constexpr (std::same_as<T, A>)
        if (state_.has_master()) part.weight = state_.master(each.index);
      part.direction = {static_cast<A*>(direction.data()), direction.size()};
      apply_all(after, optimizer, {each}, {}, {part}, {scale_by});
    });
  }
  [[nodiscard]] bool takes_operands() const noexcept override { return in_one_pass && !state_.has_master(); }
  void update_by_operands([[maybe_unused]] const FragmentStep<Space>& each, [[maybe_unused]] std::size_t begin,
                          [[maybe_unused]] std::span<const void* const> gradients,
                          [[maybe_unused]] std::size_t count) override {
    if constexpr (in_one_pass) {
      auto states = state_.template states<Optimizer::states>(each.index);
      for (auto& state : states) state = state.subspan(begin, count);
      average_and_update(optimizer_, each.step, {static_cast<T*>(each.fragment.weight.data()) + begin, count},
                         gradients, states);
    }
  }
  [[nodiscard]] std::size_t coefficient_bytes() const noexcept override {
    if constexpr (HostAccessible<Space> || !ElementwiseOptimizer<Optimizer>)
      return 0;
    else
      return sizeof(coefficients_t<Optimizer, A>);
  }
  void write_coefficients([[maybe_unused]] const FragmentSteps<Space>& fragments,
                          [[maybe_unused]] std::byte* to) const override {
    if constexpr (!HostAccessible<Space> && ElementwiseOptimizer<Optimizer>) {
      for (const auto& each : fragments) {
        if (each.fragment.weight.empty()) continue;
        const auto coefficients = optimizer_.template coefficients<A>(each.step);
        std::memcpy(to, &coefficients, sizeof(coefficients));
        to += sizeof(coefficients);
      }
    }
  }
  void adopt(stream after, std::size_t fragment, Span<AnyElement, Space> weight) override {
    if (state_.has_master()) cast_to<Space>(after, state_.master(fragment), weight);
  }
  [[nodiscard]] std::vector<std::string> array_names(bool has_rows) const override {
    auto names = state_names<Optimizer>(has_rows);
    if (state_.has_master()) names.emplace(names.begin(), "master");
    return names;
  }
  [[nodiscard]] ElementType array_type() const noexcept override { return element_type<A>; }
  [[nodiscard]] Span<AnyElement, Space> array(std::size_t fragment, std::size_t k) const noexcept override {
    return state_.array(fragment, k);
  }

 private:
  /// Whether gradients of the weights' type are averaged while they are loaded.
  static constexpr bool in_one_pass = HostAccessible<Space> && ElementwiseOptimizer<Optimizer> && std::same_as<T, A>;
  /// Elements of 16-bit gradients that are converted at a time: few, to stay in the caches.
  static constexpr std::size_t block = 16384;

  /// A fragment of the weights, and where its direction is written: over the gradient if the types allow it.
  struct Work {
    Span<T, Space> weight;
    Span<const T, Space> gradient;
    Span<A, Space> direction;
  };

  /// Returns the elements of a direction in the workspace: on GPUs the next one begins on a line, so that kernels move
  /// 16 bytes at once.
  [[nodiscard]] static std::size_t padded(std::size_t size) noexcept {
    return HostAccessible<Space> ? size : round_up_to_lines(size * sizeof(A)) / sizeof(A);
  }
  [[nodiscard]] bool directs_apart() const noexcept { return state_.has_master() || !std::same_as<T, A>; }
  [[nodiscard]] static std::size_t states_of(const FragmentDescription& fragment) noexcept {
    if constexpr (!is_mixed<Optimizer>)
      return Optimizer::states;
    else
      return fragment.matrix.size() > 0 ? decltype(Optimizer::matrices)::states : decltype(Optimizer::others)::states;
  }
  /// Returns the elements of workspace that updating one fragment takes.
  [[nodiscard]] std::size_t work_of(const FragmentDescription& fragment) const {
    if constexpr (NormOptimizer<Optimizer>) return 0;
    if (fragment.matrix.size() == 0)
      return HostAccessible<Space> && state_.has_master() ? std::min(block, fragment.size) : 0;
    const std::size_t direction = directs_apart() ? padded(fragment.size) : 0;
    if constexpr (MatrixOptimizer<Optimizer>)
      return direction + Optimizer::scratch(fragment.matrix);
    else if constexpr (is_mixed<Optimizer>)
      return direction + decltype(Optimizer::matrices)::scratch(fragment.matrix);
    else
      return 0;
  }

  /// Returns a part of a fragment; 16-bit gradients are converted into the workspace.
  [[nodiscard]] Work work(stream after, const FragmentStep<Space>& each, double factor, std::size_t workspace,
                          std::size_t begin, std::size_t size) const {
    const auto& fragment = each.fragment;
    Work work;
    if (directs_apart()) work.direction = workspace_->template of<A>(workspace, size);
    if (state_.has_master()) {
      if constexpr (std::same_as<T, A>) {
        work.weight = state_.master(each.index).subspan(begin, size);
        if constexpr (HostAccessible<Space>) {  // elsewhere the kernel converts and scales
          cast_to<Space>(after, work.direction, fragment.gradient.subspan(begin, size));
          if (factor != 1) scale(after, work.direction, factor);
        }
        work.gradient = work.direction;
      }
      return work;
    }
    T* const gradient = static_cast<T*>(fragment.gradient.data()) + begin;
    work.weight = {static_cast<T*>(fragment.weight.data()) + begin, size};
    work.gradient = Span<const T, Space>(gradient, size);
    if constexpr (std::same_as<T, A>) work.direction = {gradient, size};
    return work;
  }
  void finish(stream after, const FragmentStep<Space>& each, const Work& done, std::size_t begin) const {
    if (state_.has_master())
      cast_to<Space>(after, each.fragment.weight.subspan(begin, done.weight.size()), done.weight);
  }

  template <class Elements>
  void by_elements(stream after, const Elements& optimizer, const FragmentSteps<Space>& fragments,
                   const GradientFactor& factor, const std::byte* coefficients) const {
    if constexpr (HostAccessible<Space>) {
      for (const auto& each : fragments) by_elements(after, optimizer, each, factor.value);
    } else {
      in_one_launch<Elements>(after, fragments, factor, coefficients, [&](auto& piece, std::size_t i) {
        piece.coefficients = optimizer.template coefficients<A>(fragments[i].step);
        piece.state = state_.template states<Elements::states>(fragments[i].index);
      });
    }
  }
  template <class Elements>
  void by_elements(stream after, const Elements& optimizer, const FragmentStep<Space>& each, double factor) const {
    const std::size_t size = state_[each.index].size;
    const std::size_t step = state_.has_master() ? block : size;
    for (std::size_t begin = 0; begin < size; begin += step) {
      const std::size_t count = std::min(step, size - begin);
      auto states = state_.template states<Elements::states>(each.index);
      for (auto& state : states) state = state.subspan(begin, count);
      Work part;
      if (state_.has_master())
        part = work(after, each, factor, 0, begin, count);
      else {
        part.weight = {static_cast<T*>(each.fragment.weight.data()), size};
        part.gradient = {static_cast<const T*>(each.fragment.gradient.data()), size};
      }
      fused_update(after, optimizer, each.step, part.weight, part.gradient, states);
      finish(after, each, part, begin);
    }
  }

  /// Updates by a kernel that converts and scales gradients, and rounds masters to weights, while it updates.
  /// @param set  set(piece, i) sets the coefficients and the states of the i-th piece
  template <class Elements, class Set>
  void in_one_launch(stream after, const FragmentSteps<Space>& fragments, const GradientFactor& factor,
                     const std::byte* coefficients, Set&& set) const {
    if (fragments.empty()) return;
    if constexpr (std::same_as<T, float>) {
      if (state_.has_master()) {
        const auto& fragment = fragments.front().fragment;  // all of a bucket have the same types
        return with_type(fragment.weight, [&]<class Low>(Span<Low, Space>) {
          if constexpr (number_of_pass<Elements> == 2 && sizeof(Low) == 2)
            launch<Elements, Low, Low>(after, fragments, factor, coefficients, set);
          else
            with_type(fragment.gradient, [&]<class Gradient>(Span<Gradient, Space>) {
              if constexpr (sizeof(Low) == 2 && sizeof(Gradient) <= 4)
                launch<Elements, Low, Gradient>(after, fragments, factor, coefficients, set);
            });
        });
      }
    }
    launch<Elements, T, T>(after, fragments, factor, coefficients, set);
  }
  template <class Elements, class Low, class Gradient, class Set>
  void launch(stream after, const FragmentSteps<Space>& fragments, const GradientFactor& factor,
              const std::byte* coefficients, Set&& set) const {
    std::vector<UpdatePiece<Space, Elements, T, Low, Gradient>> all;
    all.reserve(fragments.size());
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      const auto& fragment = fragments[i].fragment;
      const Span<Low, Space> weight(static_cast<Low*>(fragment.weight.data()), fragment.weight.size());
      auto& piece = all.emplace_back();
      if constexpr (std::same_as<T, Low>) {
        piece.weight = weight;
      } else {
        piece.weight = state_.master(fragments[i].index);
        piece.low = weight;
      }
      if constexpr (number_of_pass<Elements> == 2)
        piece.gradient = weight;  // which the second pass does not use
      else
        piece.gradient = {static_cast<const Gradient*>(fragment.gradient.data()), weight.size()};
      set(piece, i);
    }
    fused_update(after, std::span<const UpdatePiece<Space, Elements, T, Low, Gradient>>(all), factor, coefficients);
  }

  template <class Matrices>
  void by_matrix(stream after, const Matrices& optimizer, const FragmentStep<Space>& each,
                 const GradientFactor& factor) const {
    const auto& fragment = state_[each.index];
    const std::vector<Work> whole = direct_all(after, optimizer, {each}, factor);
    const auto scratch =
        workspace_->template of<A>(directs_apart() ? padded(fragment.size) : 0, Matrices::scratch(fragment.matrix));
    constexpr bool transforms = requires { optimizer.transform(after, fragment.matrix, whole[0].direction, scratch); };
    static_assert(transforms,
                  "distx::DataParallel: the optimizer's transform does not accept this memory space's stream and "
                  "spans; make it a template over both");
    if constexpr (transforms)
      apply_all(after, optimizer, {each}, factor, whole,
                {optimizer.transform(after, fragment.matrix, whole[0].direction, scratch)});
  }
  /// Makes the first pass over fragments.
  template <class Directing>
  [[nodiscard]] std::vector<Work> direct_all(stream after, const Directing& optimizer,
                                             const FragmentSteps<Space>& fragments,
                                             const GradientFactor& factor) const {
    std::vector<Work> all;
    all.reserve(fragments.size());
    for (const auto& each : fragments) {
      const Work part = work(after, each, factor.value, works_[each.index], 0, state_[each.index].size);
      if constexpr (HostAccessible<Space>)
        fused_direction(after, optimizer, each.step, part.weight, part.gradient, part.direction,
                        state_.template states<Directing::states>(each.index));
      all.push_back(part);
    }
    if constexpr (!HostAccessible<Space>)
      in_one_launch<FirstPass<Directing>>(after, fragments, factor, nullptr, [&](auto& piece, std::size_t i) {
        piece.coefficients = optimizer.template coefficients<A>(fragments[i].step);
        piece.state[0] = all[i].direction;
        for (std::size_t s = 0; s < Directing::states; ++s)
          piece.state[1 + s] = state_.template states<Directing::states>(fragments[i].index)[s];
      });
    return all;
  }
  /// Makes the second pass: updates the parts along their directions, times `factors`.
  template <class Directing>
  void apply_all(stream after, const Directing& optimizer, const FragmentSteps<Space>& fragments,
                 const GradientFactor& factor, const std::vector<Work>& parts,
                 const std::vector<double>& factors) const {
    if constexpr (HostAccessible<Space>) {
      for (std::size_t i = 0; i < fragments.size(); ++i) {
        fused_apply(after, optimizer, fragments[i].step, factors[i], parts[i].weight, parts[i].direction);
        finish(after, fragments[i], parts[i], 0);
      }
    } else {
      using Pass = SecondPass<Directing>;
      in_one_launch<Pass>(after, fragments, factor, nullptr, [&](auto& piece, std::size_t i) {
        piece.coefficients = Pass{optimizer, factors[i]}.template coefficients<A>(fragments[i].step);
        piece.state[0] = parts[i].direction;
      });
    }
  }
  /// Calls f with the optimizer of matrices, if there is one.
  template <class F>
  void with_matrices([[maybe_unused]] F&& f) const {
    if constexpr (MatrixOptimizer<Optimizer>)
      f(optimizer_);
    else if constexpr (is_mixed<Optimizer>)
      f(optimizer_.matrices);
  }

  Optimizer optimizer_;
  std::size_t parameters_;
  ShardState<Space, A> state_;
  std::shared_ptr<OptimizerWorkspace<Space>> workspace_;
  std::vector<std::size_t> works_;  // where each fragment's direction begins in the workspace
  std::vector<Work> directed_{};    // of the fragments in an update by norms
};

template <MemorySpace Space, ShardableOptimizer Optimizer>
std::unique_ptr<ShardUpdate<Space>> make_shard_update(const Optimizer& optimizer, const ShardDescription& shard,
                                                      const std::shared_ptr<OptimizerWorkspace<Space>>& workspace,
                                                      const StateAllocator<Space>& allocate) {
  const auto make = [&]<class T>(std::type_identity<T>) -> std::unique_ptr<ShardUpdate<Space>> {
    return std::make_unique<ShardUpdateOf<Space, Optimizer, T>>(optimizer, shard, workspace, allocate);
  };
  return with_type(shard.master ? ElementType::f32 : shard.type, make);
}

}  // namespace distx::inline DISTX_ABI::detail
