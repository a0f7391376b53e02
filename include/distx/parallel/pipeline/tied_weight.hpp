// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/comm/reductions.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/tensor_gradient.hpp"
#include "distx/tensor/ops/arithmetic.hpp"

namespace distx::inline DISTX_ABI::pipeline {

/// Adds the gradients of a weight that several stages hold a copy of, such as the table of a tied embedding.
///
/// Each of these stages lists its copy without `.micro_batches`, all but one with `.counted = false`, and passes its
/// layers a TiedTraining; `ready`, after the last backward pass of a step, adds the sums of all stages. Copies
/// with the same first values stay alike.
/// @tparam Data  the axis along which batches are split
/// @tparam W  the TensorParameter
template <class Data, DistributedTensor W>
class TiedWeight {
  using Space = typename W::space;
  static_assert(HostAccessible<Space>, "distx: TiedWeight: pipelines support weights in the host's memory only");
  using Terms = DistTensor<accumulator_t<detail::value_of<W>>, detail::rank_of<W>, detail::mesh_of<W>,
                           detail::layout_with<detail::layout_of<W>, Partial<Data>>, Space>;

 public:
  /// @param weight  this rank's copy; it outlives this object
  /// @param holders  the ranks along the pipeline that hold a copy
  TiedWeight(const W& weight, const AnyCommunicator<Space>& holders) : weight_(&weight), holders_(holders.share()) {}

  [[nodiscard]] const W& weight() const noexcept { return *weight_; }
  /// Adds a gradient. Collective over the axes other than `Data` where it is Partial: it is reduced there.
  template <class G>
    requires detail::GradientOf<G, W, Data>
  void add(const G& gradient, const std::source_location& location = std::source_location::current()) {
    using Facts = detail::GradientFacts<Data, detail::layout_of<W>, detail::layout_of<G>, detail::mesh_of<W>>;
    static_assert(std::same_as<typename Facts::reduced, detail::layout_of<Terms>>,
                  "distx: TiedWeight: the gradient is not Partial over the data axis");
    auto terms = detail::reduced_to(std::type_identity<typename Facts::reduced>(), gradient, location);
    if (terms_)
      distx::add(terms.stream(), terms_->local(), std::as_const(terms).local());
    else
      terms_.emplace(std::move(terms));
  }
  /// Adds the copies' gradients and declares that of this copy ready. Collective over the holders, in the same order on
  /// each.
  /// @throws InvalidState unless a gradient was added in this step; this revokes the holders' communicator
  template <class Training>
  void ready(Training& training, const std::source_location& location = std::source_location::current()) {
    detail::revoke_on_exception(
        [&] {
          auto terms = std::exchange(terms_, {});
          if (!terms)
            throw InvalidState(
                "'" + weight_->name() + "' has no gradient on this stage; pass its layers a TiedTraining",
                {.operation = "TiedWeight::ready", .location = location});
          all_reduce(holders_, terms->local(), sum, location);
          training.ready(*weight_, *terms);
        },
        [&](const auto& reason) { holders_.revoke(reason.published()); });
  }

 private:
  const W* weight_;
  AnyCommunicator<Space> holders_;
  std::optional<Terms> terms_{};
};

/// A training whose gradients of one weight a TiedWeight collects. Both outlive it.
template <class Training, class Tied>
class TiedTraining {
 public:
  TiedTraining(Training& training, Tied& tied) noexcept : training_(training), tied_(tied) {}

  template <class... Ws>
  [[nodiscard]] auto unshard(const Ws&... weights) {
    return training_.unshard(weights...);
  }
  template <class W, class G>
  void ready(const W& weight, const G& gradient) {
    if constexpr (requires { &weight == &tied_.weight(); })
      if (&weight == &tied_.weight()) return tied_.add(gradient);
    training_.ready(weight, gradient);
  }
  [[nodiscard]] auto count_activations(std::size_t bytes) { return training_.count_activations(bytes); }

 private:
  Training& training_;
  Tied& tied_;
};

}  // namespace distx::inline DISTX_ABI::pipeline
