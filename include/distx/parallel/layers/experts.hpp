// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>
#include <memory>

#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/layers/detail/residual_branch.hpp"
#include "distx/parallel/layers/experts/dispatch.hpp"
#include "distx/parallel/layers/experts/routing.hpp"
#include "distx/tensor/ops/activations.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The values that the backward pass of experts takes besides their tokens.
template <class C>
struct ExpertActivations {
  Routing<C> routing;
  layers::ExpertDispatch dispatch;
  Buffer<C> received, inner, active;  // of this rank's experts
  Buffer<C> returned;                 // the results for this rank's choices
  observe::CountedMemory counted{};

  [[nodiscard]] std::size_t bytes() const {
    return routing.bytes() + (received.size() + inner.size() + active.size() + returned.size()) * sizeof(C);
  }
};

/// The output layer of a branch without a bias.
struct NoBias {
  template <class X, class Training>
  [[nodiscard]] X add_bias(X total, Training&) const {
    return total;
  }
  template <class G, class Training>
  void add_bias_backward(const G&, Training&) const {}
};

template <class T, class Space>
MatrixRef<T, Space> rows_from(Span<T, Space> values, std::size_t first, std::size_t rows, std::size_t columns) {
  return {values.subspan(first * columns, rows * columns), rows, columns};
}

}  // namespace detail

namespace layers {

/// A mixture of experts: each token passes some of many MLPs without biases, which a linear gate chooses (Shazeer et
/// al., 2017, arXiv 1701.06538). Experts are sharded over the axis `Split::experts`, their inner width over the model
/// axis.
///
/// Forward and backward move tokens to their experts and back by two all-to-alls each, after one of the numbers of
/// tokens in the forward pass. Each rank routes its own tokens; a gradient of an expert is the sum, in the order of
/// ranks, of one product for each rank's tokens. So with one rank along the other axes, training of weights that are
/// not of 16 bits has the bits of one process with a micro-batch for each rank's batches. An error on one rank revokes
/// the mesh's communicators. In host memory.
///
/// `forward` and `backward` map (batch, length, width) tensors of the residual layout to the same shape.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel with an axis of experts
template <class T, class Split>
class ParallelExperts : public detail::ResidualBranch<ParallelExperts<T, Split>, Split> {
  using Axis = typename Split::experts;
  using Model = typename Split::model;
  static_assert(!std::is_void_v<Axis>, "distx: ParallelExperts: the TensorParallel has no axis of experts; name one");
  static_assert(!std::same_as<Axis, typename Split::data>,
                "distx: ParallelExperts: experts cannot be sharded over the data axis; name another axis");
  static_assert(std::same_as<typename Split::space, Host>,
                "distx: ParallelExperts: experts support host memory only; use ParallelMlp in GPU memory");
  using C = accumulator_t<T>;
  using Tokens = typename Split::template tensor<T, 3, typename Split::tokens>;
  using Terms = typename Split::template tensor<T, 3, typename Split::tokens, Partial<Model>>;
  using Sums = Layout<Partial<typename Split::data>, detail::PartialAlong<typename Split::context>>;
  using Held = detail::ExpertActivations<C>;

 public:
  /// Tokens, their experts, and what the experts of this rank got and computed.
  using activations = Activations<Tokens, Held>;

  /// @param inner  the inner width of each expert
  /// @param gate  gate(index) returns the first weight at an index of (width, experts)
  /// @param wide  wide(index) returns the first weight at an index of (experts, width, inner)
  /// @param narrow  narrow(index) returns the first weight at an index of (experts, inner, width)
  /// @param settings  not null
  /// @throws InvalidArgument if `experts` is 0 or `settings` is null
  template <class F, class G, class H>
  ParallelExperts(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t inner,
                  std::size_t experts, F gate, G wide, H narrow, std::shared_ptr<const RouterSettings> settings)
      : name_(name),
        settings_(std::move(settings)),
        gate_(name + ".gate", mesh, {width, experts}, std::move(gate)),
        wide_(name + ".wide", mesh, {experts, width, inner}, std::move(wide)),
        narrow_(name + ".narrow", mesh, {experts, inner, width}, std::move(narrow)) {
    const auto fail = [&](const char* message) {
      throw InvalidArgument("'" + name + "' has no " + message, context("ParallelExperts"));
    };
    if (experts == 0) fail("experts: give at least one");
    if (settings_ == nullptr) fail("settings: pass std::make_shared<RouterSettings>()");
  }

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    f(gate_);
    f(wide_);
    f(narrow_);
  }

  /// Computes this rank's terms of the result, Partial over the model axis. Collective over the axis of experts.
  /// @throws InvalidArgument for settings that do not fit the number of experts
  template <class Training>
  [[nodiscard]] auto terms(Tokens tokens, Training& training) const {
    return guarded([&] { return computed_terms(std::move(tokens), training); });
  }
  /// Returns the terms of the tokens' gradient, Partial over the model axis. Collective over the axis of experts.
  template <class G, class Training>
  [[nodiscard]] auto terms_backward(activations kept, const G& gradient, Training& training) const {
    return guarded([&] { return computed_gradient(std::move(kept), gradient, training); });
  }
  /// Returns what adds the bias, which there is none of.
  [[nodiscard]] detail::NoBias output() const { return {}; }

 private:
  using Weights = typename Split::template weight<T, 3, Shard<0, Axis>, Shard<2, Model>>;
  using NarrowWeights = typename Split::template weight<T, 3, Shard<0, Axis>, Shard<1, Model>>;

  template <class F>
  auto guarded(F&& f) const {
    return detail::revoke_on_exception(std::forward<F>(f), [&](const auto& reason) {
      detail::in_space<Host>(detail::state_of(gate_.mesh())).revoke(reason.published());
    });
  }
  template <class Training>
  auto computed_terms(Tokens tokens, Training& training) const {
    check_settings();
    const auto weights = training.unshard(gate_, wide_, narrow_);
    const std::size_t n = count(tokens), width = tokens.extent(2), experts = gate_.extent(1);
    Buffer<C> logits(n * experts, uninitialized);
    const auto& gate = detail::computed(gate_);
    multiply(rows(logits.span(), n, experts), rows(tokens.local(), n, width), {gate.local(), width, experts});
    detail::Routing<C> routing(rows(logits.span(), n, experts), *settings_);
    if (settings_->on_routed) settings_->on_routed(routing.report(name_));

    ExpertDispatch dispatch(gate_.mesh().template along<Axis>(), routing.sizes());
    auto received = dispatch.template to_experts<C>(routing.rows(tokens.local().data(), width).span(), width);
    const std::size_t inner = wide_.local_extents()[2];
    Buffer<C> of_inner(dispatch.rows() * inner, uninitialized), active(of_inner.size(), uninitialized);
    Buffer<C> results(dispatch.rows() * width, uninitialized);
    const auto& wide = detail::computed(wide_);
    const auto& narrow = detail::computed(narrow_);
    for (const auto& [expert, begin, size] : dispatch.blocks()) {
      const auto to = detail::rows_from(of_inner.span(), begin, size, inner);
      const auto out = detail::rows_from(active.span(), begin, size, inner);
      multiply(to, detail::rows_from(detail::as_const(received.span()), begin, size, width), of_expert(wide, expert));
      detail::for_elements(HostStream{}, detail::elements::Gelu<C>(), out.values, detail::as_const(to.values));
      multiply(detail::rows_from(results.span(), begin, size, width), out, of_expert(narrow, expert));
    }
    auto returned = dispatch.template to_tokens<C>(results.span(), width);
    Terms sums(gate_.mesh(), tokens.extents());
    routing.add_to(sums.local().data(), returned.data(), width, true);

    Held held{std::move(routing),  std::move(dispatch), std::move(received),
              std::move(of_inner), std::move(active),   std::move(returned)};
    held.counted = training.count_activations(held.bytes());
    return Forward{std::move(sums), activations(training, std::move(tokens), std::move(held))};
  }
  template <class G, class Training>
  Terms computed_gradient(activations kept, const G& gradient, Training& training) const {
    const auto& [tokens, held] = kept.kept();
    const auto weights = training.unshard(gate_, wide_, narrow_);
    const std::size_t n = count(tokens), width = tokens.extent(2), experts = gate_.extent(1);
    const auto& [routing, dispatch, received, of_inner, active, returned, counted] = held;
    const C* const slopes = gradient.local().data();
    const auto of_results = dispatch.template to_experts<C>(routing.weighted_rows(slopes, width).span(), width);
    const auto of_received = backward_of_experts(held, of_results, training);
    const auto of_rows = dispatch.template to_tokens<C>(of_received.span(), width);

    Buffer<C> of_logits(n * experts, uninitialized);
    routing.backward(returned.data(), slopes, width, *settings_, share_of_losses(tokens), of_logits.data());
    typename Split::template tensor<T, 2, Sums, Partial<Axis>, Partial<Model>> of_gate(gate_.mesh(), gate_.extents());
    multiply({of_gate.local(), width, experts}, rows(tokens.local(), n, width).transpose(),
             rows(of_logits.span(), n, experts));
    training.ready(gate_, of_gate);
    Terms of_tokens(gate_.mesh(), tokens.extents());
    const auto& gate = detail::computed(gate_);
    multiply(rows(of_tokens.local(), n, width), rows(of_logits.span(), n, experts),
             MatrixRef<const C>{gate.local(), width, experts}.transpose());
    routing.add_to(of_tokens.local().data(), of_rows.data(), width, false);
    return of_tokens;
  }
  static std::size_t count(const Tokens& tokens) { return tokens.local_extents()[0] * tokens.local_extents()[1]; }
  template <class V>
  static MatrixRef<V> rows(Span<V> values, std::size_t count, std::size_t columns) {
    return {values, count, columns};
  }
  static void multiply(MatrixRef<C> out, MatrixRef<const C> left, MatrixRef<const C> right) {
    detail::multiply(HostStream{}, out, left, right);
  }
  /// One expert's matrix of weights, or of their gradients.
  template <class W>
  static auto of_expert(W& weights, std::size_t expert) {
    const auto extents = weights.local_extents();
    return detail::rows_from(weights.local(), expert * extents[1], extents[1], extents[2]);
  }
  /// Returns the gradient of the rows that this rank's experts received.
  template <class Training>
  Buffer<C> backward_of_experts(const Held& held, const Buffer<C>& of_results, Training& training) const {
    const auto& wide = detail::computed(wide_);
    const auto& narrow = detail::computed(narrow_);
    const std::size_t width = wide_.extent(1), inner = wide_.local_extents()[2], all = held.dispatch.rows();
    typename Split::template tensor<T, 3, Sums, Shard<0, Axis>, Shard<2, Model>> of_wide(wide_.mesh(), wide_.extents());
    typename Split::template tensor<T, 3, Sums, Shard<0, Axis>, Shard<1, Model>> of_narrow(wide_.mesh(),
                                                                                           narrow_.extents());
    Buffer<C> of_received(all * width, uninitialized), slopes, product(width * inner, uninitialized);
    for (const auto& [expert, begin, size] : held.dispatch.blocks()) {
      if (size == 0) continue;
      const auto part = [begin = begin, size = size](const Buffer<C>& values, std::size_t columns) {
        return detail::rows_from(values.span(), begin, size, columns);
      };
      slopes = Buffer<C>(size * inner, uninitialized);
      const auto of_active = rows(slopes.span(), size, inner), results = part(of_results, width);
      multiply(of_active, results, of_expert(narrow, expert).transpose());
      const auto add_product = [&](MatrixRef<C> sum, const auto& left, const auto& right) {
        const MatrixRef<C> to{product.span(), sum.rows, sum.columns};
        multiply(to, left.transpose(), right);
        std::ranges::transform(sum.values, to.values, sum.values.begin(), std::plus());
      };
      add_product(of_expert(of_narrow, expert), part(held.active, inner), results);
      detail::for_elements(HostStream{}, detail::elements::GeluBackward<C>(), of_active.values,
                           detail::as_const(part(held.inner, inner).values), detail::as_const(of_active.values));
      add_product(of_expert(of_wide, expert), part(held.received, width), of_active);
      multiply(detail::rows_from(of_received.span(), begin, size, width), of_active,
               of_expert(wide, expert).transpose());
    }
    training.ready(narrow_, of_narrow);
    training.ready(wide_, of_wide);
    return of_received;
  }
  /// The share of the router's losses over this rank's tokens; ranks along the model axis have the same tokens.
  double share_of_losses(const Tokens& tokens) const {
    const auto& mesh = gate_.mesh();
    const auto of_all = static_cast<double>(tokens.extent(0) * tokens.extent(1));
    return mesh.template coordinate<Model>() > 0 ? 0
                                                 : settings_->loss_share * static_cast<double>(count(tokens)) *
                                                       mesh.template size<typename Split::data>() / of_all;
  }
  void check_settings() const {
    if (settings_->experts_per_token < 1 || settings_->experts_per_token > gate_.extent(1))
      throw InvalidArgument("invalid .experts_per_token = " + std::to_string(settings_->experts_per_token) + " of '" +
                                name_ + "': must be in [1, " + std::to_string(gate_.extent(1)) +
                                "], the number of experts",
                            context("forward"));
    if (!(settings_->capacity > 0))
      throw InvalidArgument("invalid .capacity of '" + name_ + "': must be positive", context("forward"));
  }
  [[nodiscard]] ErrorContext context(std::string_view operation) const {
    return {.operation = operation, .rank = gate_.mesh().rank(), .size = gate_.mesh().size()};
  }

  std::string name_;
  std::shared_ptr<const RouterSettings> settings_;
  typename Split::template weight<T, 2> gate_;
  Weights wide_;
  NarrowWeights narrow_;
};

}  // namespace layers

}  // namespace distx::inline DISTX_ABI
