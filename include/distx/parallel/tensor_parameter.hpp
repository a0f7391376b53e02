// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/parallel/parameter_list.hpp"
#include "distx/parallel/training_state.hpp"
#include "distx/tensor/make_tensor.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// A TensorParameter in a list, type-erased.
struct TensorEntry : MeshParameter {
  MeshState* mesh;
  AxisSet cutting;  ///< the axes that shard it
};

/// Gives MeshParallel access to TensorParameters and their lists.
struct TensorAccess {
  /// Returns this rank's part, or null if it is empty.
  template <class W>
  [[nodiscard]] static auto part(const W& weight) noexcept {
    return weight.part_ ? &*weight.part_ : nullptr;
  }
  template <class List>
  [[nodiscard]] static const std::vector<TensorEntry>& entries(const List& list) noexcept {
    return list.entries_;
  }
  template <class List>
  [[nodiscard]] static const auto& parts(const List& list) noexcept {
    return list.parts_;
  }
};

}  // namespace detail

/// A weight that is distributed over a mesh, with its gradient: each rank's part is a Parameter.
///
/// It is a DistributedTensor, which operations take as it is, and has no memory until a MeshParallel is made of it.
/// Move-only.
/// @tparam Rank  the number of dimensions
/// @tparam L  the layout, without Partial
template <FloatingElement T, std::size_t Rank, detail::MeshType MeshT, class L = Layout<>, MemorySpace Space = Host>
class TensorParameter : public DistTensorSpec<Rank, MeshT, L> {
  static_assert(!L::has_partial,
                "distx::TensorParameter: a weight cannot be Partial; use Replicated or Shard in its layout");

 public:
  using element_type = T;
  using value_type = T;
  using space = Space;

  /// Constructs a weight with the given global extents.
  ///
  /// @param f  f(index) returns the first value at a global index, on the host; the same on every rank
  /// @param options  `.rows` are those of the whole weight
  /// @throws InvalidArgument as the constructor of Parameter
  template <class F>
    requires std::invocable<F&, const Extents<Rank>&>
  TensorParameter(std::string name, const MeshT& mesh, const Extents<Rank>& extents, F f,
                  const ParameterOptions& options = {})
      : DistTensorSpec<Rank, MeshT, L>(mesh, extents),
        name_(std::move(name)),
        trainable_(options.trainable),
        rows_(options.rows) {
    if (rows_ != 0 && volume(extents) != 0) detail::check_parameter(name_, volume(extents), options);
    if (this->local_volume() == 0) return;  // an empty part is not trained
    const auto initialize = [box = detail::SpecAccess::box(*this), f = std::move(f)](Span<T, Space> values) mutable {
      const auto write = [&](T* to) {
        detail::for_each_index<Rank>(box, [&](const Extents<Rank>& index) { *to++ = static_cast<T>(f(index)); });
      };
      if constexpr (HostAccessible<Space>) {
        write(values.data());
      } else {
        const Buffer<T> here(values.size(), uninitialized);
        write(here.data());
        const typename Space::stream stream{};
        copy(stream, values, Span<const T>(here));
        stream.synchronize();
      }
    };
    ParameterOptions of_part = options;
    if (MeshT::axes > 1 && rows_ != 0) of_part.rows = 1;  // MeshParallel has the shape of the whole matrix
    part_.emplace(name_, this->local_volume(), initialize, of_part);
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Returns this rank's part of the values, row-major; valid as long as what `Parameter::value` returns.
  /// @throws InvalidState as `Parameter::value`
  [[nodiscard]] Span<const T, Space> local() const {
    if (part_) return part_->value();
    return {};
  }

 private:
  friend struct detail::TensorAccess;
  template <MemorySpace>
  friend class TensorParameterList;

  std::string name_;
  bool trainable_;
  std::size_t rows_;
  std::optional<Parameter<T, Space>> part_;
};

namespace pipeline {

/// The use of a weight by a stage of a pipeline.
struct StageUse {
  /// A step has that many micro-batches, any number of them in flight: each weight's gradient is final when it was
  /// declared ready once for each micro-batch and use.
  int micro_batches = 1;
  bool counted = true;  ///< in the norm of the gradients; false for a copy of a weight that another stage counts
};

}  // namespace pipeline

/// The weights of a model for MeshParallel, in the order of its forward pass.
template <MemorySpace Space = Host>
class TensorParameterList {
 public:
  /// Appends weights; the list shares their state.
  template <class... Parameters>
  TensorParameterList& add(const Parameters&... parameters) {
    (add_one(parameters, {}), ...);
    return *this;
  }
  /// Appends a weight of a stage of a pipeline.
  /// @throws InvalidArgument unless `use.micro_batches` is positive
  template <class ParameterT>
  TensorParameterList& add(const ParameterT& parameter, const pipeline::StageUse& use) {
    if (use.micro_batches < 1)
      throw InvalidArgument("invalid .micro_batches = " + std::to_string(use.micro_batches) + " of '" +
                                parameter.name() + "': must be >= 1",
                            {.operation = "TensorParameterList"});
    add_one(parameter, use);
    return *this;
  }

 private:
  friend struct detail::TensorAccess;
  template <FloatingElement T, std::size_t Rank, class MeshT, class L>
  void add_one(const TensorParameter<T, Rank, MeshT, L, Space>& parameter, const pipeline::StageUse& use) {
    const auto* const part = detail::TensorAccess::part(parameter);
    const auto list = [](const Extents<Rank>& extents) { return std::vector(extents.begin(), extents.end()); };
    const detail::AxisSet cutting = detail::sharding_of(parameter).sharded_axes();
    entries_.push_back({{.name = parameter.name(),
                         .type = distx::element_type<T>,
                         .empty = part == nullptr,
                         .part = {list(parameter.extents()), list(parameter.offset()), list(parameter.local_extents())},
                         .counted = use.counted,
                         .sharded = cutting != 0,
                         .trained = parameter.trainable_,
                         .rows = parameter.rows_},
                        &detail::state_of(parameter.mesh()),
                        cutting});
    if (part == nullptr) return;
    parts_.add(*part);
    detail::ParameterListAccess::repeat_last(parts_, use.micro_batches);
  }

  std::vector<detail::TensorEntry> entries_;
  ParameterList<Space> parts_;
};

}  // namespace distx::inline DISTX_ABI
