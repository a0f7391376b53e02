// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <vector>

#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/bucket/bucket.hpp"
#include "distx/parallel/detail/engine/parameters/parameter_store.hpp"
#include "distx/parallel/detail/engine/step/loss_scaler.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The values of an exponential average: of each parameter, the part that this rank updates.
template <MemorySpace Space>
struct AverageValues {
  TrackedMemory<Space> memory;
  std::vector<Span<AnyElement, Space>> values;  // by parameter; empty where this rank updates nothing
};

/// Returns the averages that still exist, and forgets the others.
template <MemorySpace Space>
[[nodiscard]] std::vector<std::shared_ptr<AverageValues<Space>>> living(
    std::vector<std::weak_ptr<AverageValues<Space>>>& all) {
  std::erase_if(all, [](const auto& average) { return average.expired(); });
  return {all.begin(), all.end()};
}

/// Returns the name of the k-th average's arrays.
[[nodiscard]] inline std::string average_name(std::size_t k) {
  return "exponential_average" + (k == 0 ? std::string() : std::to_string(k + 1));
}

/// Returns a training's counters.
template <MemorySpace Space>
[[nodiscard]] TrainingCounters counters_of(const ParameterStore<Space>& parameters, const LossScaler& scaler) {
  TrainingCounters counters{{}, scaler.scale(), scaler.finite_steps(), scaler.skipped()};
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].trained()) counters.updates.emplace_back(parameters[i].name, parameters.steps()[i].updates);
  return counters;
}
/// Sets a training's counters.
template <MemorySpace Space>
void restore_counters(ParameterStore<Space>& parameters, LossScaler& scaler, const TrainingCounters& counters) {
  scaler.restore(counters.loss_scale, counters.finite_steps, counters.skipped_steps);
  const std::unordered_map<std::string_view, std::uint64_t> updates(counters.updates.begin(), counters.updates.end());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (const auto found = updates.find(parameters[i].name); found != updates.end())
      parameters.steps()[i].updates = found->second;
}

/// Lists the arrays of a training and what this rank holds of them. Local.
///
/// The ranks that shard a model share each array as gradients are partitioned, at stage 0 too; with Hybrid, the first
/// rank of those that hold the same shard has its share. Weights outside the buckets are the share of rank 0. Of the
/// ranks that a mesh gives the same part, the first one has its shares.
template <MemorySpace Space>
class StateLister {
  using Values = Span<AnyElement, Space>;

 public:
  /// @param parts  of each parameter, if they are distributed over a mesh; else empty
  StateLister(const Buckets<Space>& buckets, const ParameterStore<Space>& parameters,
              TrainingCommunicators<Space>& comms, const std::vector<TensorPart>& parts,
              const std::vector<std::shared_ptr<AverageValues<Space>>>& averages)
      : entries_(parameters.entries()), parts_(parts), averages_(averages), comms_(comms), held_(entries_.size()) {
    for (const auto& bucket : buckets) {
      std::size_t number = 0;
      for (const auto& buffer : bucket.buffers) {
        for (const auto& range : buffer.layout.ranges) {
          held_[range.entry].bucket = &bucket;
          held_[range.entry].buffer = &buffer;
        }
        for (const auto& range : buffer.kept) held_[range.entry].kept = &range;
        for (const auto& range : buffer.updated) {
          held_[range.entry].updated = &range;
          held_[range.entry].number = number++;
        }
      }
    }
  }

  [[nodiscard]] std::vector<typename TrainingState<Space>::Array> arrays() {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Held& held = held_[i];
      const std::string& name = entries_[i].name;
      add_weight(i);
      if (held.bucket == nullptr || !entries_[i].trained()) continue;
      const auto& update = *held.bucket->update;
      const auto names = update.array_names(entries_[i].options.rows > 0);
      for (std::size_t k = 0; k < names.size(); ++k)
        add(i, "optim.state." + name + "." + names[k], held.updated,
            held.updated == nullptr ? none(update.array_type()) : update.array(held.number, k));
      for (std::size_t k = 0; k < averages_.size(); ++k)
        add(i, "optim.state." + name + "." + average_name(k), held.updated,
            held.updated == nullptr ? none(state_type(entries_[i].type())) : averages_[k]->values[i]);
    }
    return std::move(arrays_);
  }

 private:
  /// Where a parameter is, and the fragments of it that this rank has; null if there are none.
  struct Held {
    const Bucket<Space>* bucket = nullptr;
    const FlatBuffer<Space>* buffer = nullptr;
    const FragmentRange* kept = nullptr;
    const FragmentRange* updated = nullptr;
    std::size_t number = 0;  // of the updated fragment, in the bucket
  };

  [[nodiscard]] static Values none(ElementType type) noexcept { return {nullptr, 0, type, size_of(type)}; }

  void add_weight(std::size_t index) {
    const auto& entry = entries_[index];
    const Held& held = held_[index];
    const FragmentRange whole{index, 0, 0, entry.size()};
    if (held.buffer == nullptr || !held.buffer->separate_value_shard)
      add(index, entry.name, &whole, entry.value_now());
    else
      add(index, entry.name, held.kept,
          held.kept == nullptr ? none(entry.type())
                               : held.buffer->value_shard.subspan(held.kept->at - held.buffer->begin, held.kept->size));
  }
  /// @param range  the part of the parameter that `values` is; null if it is none
  void add(std::size_t index, std::string name, const FragmentRange* range, Values values) {
    const auto& entry = entries_[index];
    const std::size_t rows = entry.options.rows;
    auto& array = arrays_.emplace_back();
    array.name = std::move(name);
    array.values = values;
    if (!parts_.empty()) {
      array.shape = parts_[index].shape;
      array.part_begin = parts_[index].part_begin;
      array.part_shape = parts_[index].part_shape;
    } else {
      array.shape = !entry.options.shape.empty() ? entry.options.shape
                    : rows > 0                   ? std::vector{rows, entry.size() / rows}
                                                 : std::vector{entry.size()};
      array.part_begin.resize(array.shape.size());
      array.part_shape = array.shape;
    }
    if (range == nullptr) return;
    array.offset = range->offset;
    const auto share = share_of(index);
    const std::size_t begin = std::max(share.first, range->offset);
    const std::size_t end = std::min(share.second, range->offset + range->size);
    if (begin >= end) return;
    array.share_begin = begin - range->offset;
    array.share_size = end - begin;
  }
  /// Returns where this rank's share of a parameter begins and ends.
  [[nodiscard]] std::pair<std::size_t, std::size_t> share_of(std::size_t index) const {
    const Held& held = held_[index];
    if (!parts_.empty() && !parts_[index].first) return {0, 0};
    if (held.bucket == nullptr) return {0, comms_.all().rank() == 0 ? entries_[index].size() : 0};
    const bool first = comms_.across() == nullptr || comms_.across()->rank() == 0;
    if (held.kept == nullptr || !first) return {0, 0};
    return {held.kept->offset, held.kept->offset + held.kept->size};
  }

  const std::vector<ParameterEntry<Space>>& entries_;
  const std::vector<TensorPart>& parts_;
  const std::vector<std::shared_ptr<AverageValues<Space>>>& averages_;
  TrainingCommunicators<Space>& comms_;
  std::vector<Held> held_;
  std::vector<typename TrainingState<Space>::Array> arrays_;
};

/// Adds the arrays of a mesh's parameters that are empty on this rank to the state, which has those of the others.
template <MemorySpace Space>
void add_empty(TrainingState<Space>& state, const std::vector<MeshParameter>& parameters, std::size_t averages) {
  using Array = typename TrainingState<Space>::Array;
  auto at = state.arrays.begin();
  for (const auto& parameter : parameters) {
    const auto add = [&](std::string name, ElementType type) {
      Array array{.name = std::move(name), .shape = parameter.part.shape, .values = {nullptr, 0, type, size_of(type)}};
      array.part_begin = parameter.part.part_begin;
      array.part_shape = parameter.part.part_shape;
      at = state.arrays.insert(at, std::move(array)) + 1;
    };
    auto arrays = parameter.arrays;
    for (std::size_t k = 0; k < averages && parameter.trained; ++k) arrays.push_back(average_name(k));
    if (!parameter.empty) {
      at += static_cast<std::ptrdiff_t>(1 + arrays.size());
      continue;
    }
    add(parameter.name, parameter.type);
    for (const auto& each : arrays) add("optim.state." + parameter.name + "." + each, state_type(parameter.type));
  }
}

}  // namespace distx::inline DISTX_ABI::detail
