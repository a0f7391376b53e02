// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

#include "distx/core/detail/shortest.hpp"
#include "distx/observe/detail/json_string.hpp"
#include "distx/parallel/parameter.hpp"
#include "distx/parallel/parameter_ref.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

struct ParameterListAccess;

/// One parameter or buffer of a training, type-erased.
template <MemorySpace Space>
struct ParameterEntry {
  std::string name;
  Span<AnyElement, Space> value{};
  Span<AnyElement, Space> gradient{};
  ParameterOptions options{};
  bool buffer = false;
  std::shared_ptr<ParameterState<Space>> owned{};  // null where borrowed

  [[nodiscard]] std::size_t size() const noexcept { return owned ? owned->size : value.size(); }
  [[nodiscard]] ElementType type() const noexcept { return owned ? owned->type : value.type(); }
  [[nodiscard]] std::size_t element_bytes() const noexcept {
    return owned ? owned->element_bytes : value.element_bytes();
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return size() * element_bytes(); }
  [[nodiscard]] bool trained() const noexcept { return !buffer && options.trainable; }
  /// Return the current memory; empty while there is none.
  [[nodiscard]] Span<AnyElement, Space> value_now() const noexcept { return owned ? owned->value : value; }
  [[nodiscard]] Span<AnyElement, Space> gradient_now() const noexcept { return owned ? owned->gradient : gradient; }
  /// Returns the name of the unit that is gathered together: `.unit`, or the parameter's name up to its last dot.
  [[nodiscard]] std::string unit() const {
    if (!options.unit.empty()) return options.unit;
    return name.substr(0, name.find_last_of('.'));  // the whole name if it has no dot
  }

  /// Returns the description for errors: `'conv1.weight', 150 of float32`.
  [[nodiscard]] std::string to_string() const {
    std::string text = "'" + name + "', " + std::to_string(size()) + " of " + std::string(name_of(type()));
    if (type() == ElementType::bytes) text += " (" + std::to_string(element_bytes()) + " each)";
    if (!options.shape.empty()) text += ", shape " + shape_text(options.shape);
    if (buffer) return text + ", a buffer";
    if (owned) text += ", owned";
    if (!options.unit.empty()) text += ", unit '" + options.unit + "'";
    if (options.always_whole) text += ", always whole";
    if (options.rows != 0) text += ", " + std::to_string(options.rows) + " rows";
    if (!options.trainable) return text + ", frozen";
    if (options.uses != 1) text += ", used " + std::to_string(options.uses) + " times";
    if (options.group.learning_rate_scale != 1)
      text += ", learning rate times " + shortest(options.group.learning_rate_scale);
    if (options.group.weight_decay) text += ", weight decay " + shortest(*options.group.weight_decay);
    return text;
  }
};

}  // namespace detail

/// The parameters and buffers of a model, in the order of its forward pass; element types may differ.
///
/// A range of ParameterRefs, of Parameters, or of pointers to Parameters converts to it; `add` appends. Borrowed
/// parameters and buffers must outlive the training; owned ones may be moved, or destroyed, after they were added.
/// @code
/// distx::ParameterList<> list(model.parameters());
/// list.add(distx::ref("head", head, head_gradient)).add(distx::buffer_ref("running_mean", mean));
/// @endcode
template <MemorySpace Space = Host>
class ParameterList {
 public:
  /// Constructs an empty list.
  ParameterList() = default;
  /// Constructs a list of the range's elements, in their order.
  template <class Range>
    requires(!std::same_as<std::remove_cvref_t<Range>, ParameterList>) && requires(Range& range, ParameterList& list) {
      list.add(*std::begin(range));
      std::end(range);
    }
  ParameterList(Range&& range) {  // NOLINT: a list of parameters is a ParameterList
    for (auto&& each : range) add(each);
  }

  /// Appends a borrowed parameter.
  template <detail::ParameterElement T>
  ParameterList& add(const ParameterRef<T, Space>& parameter) {
    return append({parameter.name, parameter.weight, parameter.gradient, parameter.options});
  }
  /// Appends an owned parameter; the list shares its state.
  template <detail::ParameterElement T>
  ParameterList& add(const Parameter<T, Space>& parameter) {
    const auto& state = parameter.state_;
    return append({state->name, {}, {}, state->options, false, state});
  }
  /// Appends the owned parameter that is pointed to.
  template <detail::ParameterElement T>
  ParameterList& add(const Parameter<T, Space>* parameter) {
    return add(*parameter);
  }
  /// Appends a buffer, which is broadcast when the training is constructed and not trained.
  template <Transferable T>
  ParameterList& add(const BufferRef<T, Space>& buffer) {
    return append({buffer.name, buffer.values, {}, {.shape = buffer.shape}, true});
  }

 private:
  friend struct detail::ParameterListAccess;
  ParameterList& append(detail::ParameterEntry<Space>&& entry);

  std::vector<detail::ParameterEntry<Space>> entries_;
};

// Not in the class: in the compiled form, programs do not instantiate it.
template <MemorySpace Space>
ParameterList<Space>& ParameterList<Space>::append(detail::ParameterEntry<Space>&& entry) {
  entries_.push_back(std::move(entry));
  return *this;
}

namespace detail {

struct ParameterListAccess {
  template <MemorySpace Space>
  [[nodiscard]] static const std::vector<ParameterEntry<Space>>& entries(const ParameterList<Space>& list) noexcept {
    return list.entries_;
  }
  /// Declares gradients of the last parameter ready that many times as often.
  template <MemorySpace Space>
  static void repeat_last(ParameterList<Space>& list, int times) noexcept {
    list.entries_.back().options.uses *= times;
  }
};

/// @throws InvalidArgument unless checkpoints can have arrays of this name
inline void check_name(std::string_view name, const ErrorContext& context) {
  for (auto rest = name; !rest.empty(); rest.remove_prefix(utf8_length(rest)))
    if (utf8_length(rest) == 0)
      throw InvalidArgument("the name " + json_string(name) + " is not UTF-8; use UTF-8, as checkpoints do", context);
  if (name == "__metadata__" || name.starts_with("optim.state."))
    throw InvalidArgument("the name '" + std::string(name) + "' is one of a checkpoint's own; give another name",
                          context);
}

/// Checks a list on this rank.
/// @throws InvalidArgument that names the parameter; InvalidState if it is in another training
template <MemorySpace Space>
void check_list(const std::vector<ParameterEntry<Space>>& entries, const ErrorContext& context) {
  struct Interval {
    const std::byte* begin;
    const std::byte* end;
    const std::string* name;
  };
  std::vector<Interval> intervals;
  std::vector<const std::string*> names;
  const auto add = [&](const ParameterEntry<Space>& entry, Span<AnyElement, Space> span) {
    if (!span.empty()) intervals.push_back({span.bytes(), span.bytes() + span.size_bytes(), &entry.name});
  };
  for (const auto& entry : entries) {
    check_name(entry.name, context);
    names.push_back(&entry.name);
    add(entry, entry.value);
    if (entry.trained()) add(entry, entry.gradient);
    if (entry.buffer) continue;
    check_parameter(entry.name, entry.size(), entry.options);
    if (entry.trained() && !entry.owned)
      check_same_size(entry.name, entry.value.size(), entry.gradient.size(), context);
    if (entry.owned && entry.owned->in_training)
      throw InvalidState(message_of(StepFault::in_another_training, entry.name), context);
    if (entry.owned && entry.owned->lost) throw InvalidState(message_of(StepFault::shards_lost, entry.name), context);
  }
  std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
  for (std::size_t i = 1; i < names.size(); ++i)
    if (*names[i] == *names[i - 1])
      throw InvalidArgument("two parameters have the name '" + *names[i] +
                                "'; give each its own name, and list a tied parameter once, with .uses = 2",
                            context);
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return std::less<>{}(a.begin, b.begin); });
  for (std::size_t i = 1; i < intervals.size(); ++i)
    if (std::less<>{}(intervals[i].begin, intervals[i - 1].end))
      throw InvalidArgument(*intervals[i].name == *intervals[i - 1].name
                                ? "the weight and the gradient of '" + *intervals[i].name +
                                      "' overlap in memory; give each its own memory"
                                : "'" + *intervals[i - 1].name + "' and '" + *intervals[i].name +
                                      "' overlap in memory; list a tied parameter once, with .uses = 2",
                            context);
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
