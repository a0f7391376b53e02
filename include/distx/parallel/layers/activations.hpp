// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <tuple>
#include <utility>

#include "distx/observe/memory_ledger.hpp"
#include "distx/tensor/dist_tensor.hpp"

namespace distx::inline DISTX_ABI::layers {

/// The tensors that a layer's forward pass keeps for its backward pass, and the Activations of inner layers.
///
/// Move-only. `memory()` of the training counts the tensors' bytes as activations until this object is destroyed. Since
/// `backward` takes it, any number of forward passes may precede their backward passes.
template <class... Kept>
class Activations {
 public:
  template <class Training>
  explicit Activations(Training& training, Kept... kept) : held_(new Held{{std::move(kept)...}, {}}) {
    held_->counted =
        training.count_activations(sum([]<class T>(const T& one) { return DistributedTensor<T> ? bytes_of(one) : 0; }));
  }

  /// Returns the bytes of all tensors, those of inner layers included.
  /// @throws InvalidState if this object was moved from
  [[nodiscard]] std::size_t bytes() const {
    return sum([](const auto& one) { return bytes_of(one); });
  }
  /// Returns what is kept.
  /// @throws InvalidState if this object was moved from
  [[nodiscard]] std::tuple<Kept...>& kept() const {
    if (held_ == nullptr)
      throw InvalidState("these activations were moved from; call forward once for each backward",
                         {.operation = "backward"});
    return held_->kept;
  }

 private:
  struct Held {
    std::tuple<Kept...> kept;
    observe::CountedMemory counted;
  };

  template <class T>
  static std::size_t bytes_of(const T& one) {
    if constexpr (DistributedTensor<T>)
      return one.local().size() * sizeof(typename T::value_type);
    else
      return one.bytes();
  }
  template <class F>
  [[nodiscard]] std::size_t sum(F f) const {
    return std::apply([&](const auto&... each) { return (std::size_t{0} + ... + f(each)); }, kept());
  }

  std::unique_ptr<Held> held_;
};

/// The result of a layer's forward pass.
template <class Output, class ActivationsT>
struct Forward {
  Output output;
  ActivationsT activations;  ///< for `backward`; a pass without gradients drops them
};
template <class Output, class ActivationsT>
Forward(Output, ActivationsT) -> Forward<Output, ActivationsT>;

}  // namespace distx::inline DISTX_ABI::layers
