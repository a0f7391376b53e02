// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/parallel/parameter_list.hpp"
#include "distx/tensor/make_tensor.hpp"

namespace distx {

/// A weight that is spread over a mesh, and its gradient: each rank's part is a Parameter.
///
/// A DistributedTensor, so that operations take it as it is; empty until a MeshParallel is made of it. Move-only.
template <FloatingElement T, std::size_t Rank, detail::MeshType MeshT, class L = Layout<>, MemorySpace Space = Host>
class TensorParameter : public DistTensorSpec<Rank, MeshT, L> {
  static_assert(!L::has_partial, "distx: a weight is no sum of terms: leave Partial out of its layout");

 public:
  using element_type = T;
  using value_type = T;
  using space = Space;

  /// `f(index)` gives the first value at a global index, an array, on the host: the same on every rank. `.rows` of the
  /// options is for whole matrices, and left out here.
  template <class F>
    requires std::invocable<F&, const Extents<Rank>&>
  TensorParameter(std::string name, const MeshT& mesh, const Extents<Rank>& extents, F f,
                  const ParameterOptions& options = {})
      : DistTensorSpec<Rank, MeshT, L>(mesh, extents), name_(std::move(name)) {
    if (this->local_volume() == 0) return;  // of such a part there is nothing to train
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
    part_.emplace(name_, this->local_volume(), initialize, options);
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// This rank's part of the values; asked for each time, as `Parameter::value` is.
  [[nodiscard]] Span<const T, Space> local() const {
    if (part_) return part_->value();
    return {};
  }
  /// This rank's part; null where it is empty.
  [[nodiscard]] const Parameter<T, Space>* part() const noexcept { return part_ ? &*part_ : nullptr; }

 private:
  std::string name_;
  std::optional<Parameter<T, Space>> part_;
};

/// The weights of a model of which a MeshParallel is made, in the order of its forward pass.
template <MemorySpace Space = Host>
class TensorParameterList {
 public:
  template <class... Parameters>
  TensorParameterList& add(const Parameters&... parameters) {
    (add_one(parameters), ...);
    return *this;
  }

  struct Entry {
    std::string name;
    detail::MeshState* mesh;
    detail::AxisSet cutting;  ///< the axes that shard it
    bool empty;               ///< on this rank, so that it is not in `parts`
  };
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const ParameterList<Space>& parts() const noexcept { return parts_; }

 private:
  template <FloatingElement T, std::size_t Rank, class MeshT, class L>
  void add_one(const TensorParameter<T, Rank, MeshT, L, Space>& parameter) {
    entries_.push_back({parameter.name(), &detail::state_of(parameter.mesh()),
                        detail::sharding_of(parameter).sharded_axes(), parameter.part() == nullptr});
    if (parameter.part() != nullptr) parts_.add(*parameter.part());
  }

  std::vector<Entry> entries_;
  ParameterList<Space> parts_;
};

}  // namespace distx
