// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "distx/core/detail/shortest.hpp"
#include "distx/parallel/parameter.hpp"
#include "distx/parallel/parameter_ref.hpp"

namespace distx {

namespace detail {

/// One parameter or buffer of a training, its types forgotten.
template <MemorySpace Space>
struct Entry {
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
  /// Where they lie now; empty while there is no memory for them.
  [[nodiscard]] Span<AnyElement, Space> value_now() const noexcept { return owned ? owned->value : value; }
  [[nodiscard]] Span<AnyElement, Space> gradient_now() const noexcept { return owned ? owned->gradient : gradient; }
  /// Of what is gathered together: the option's number, or the name up to its last dot.
  [[nodiscard]] std::string unit() const {
    if (options.unit) return std::to_string(*options.unit) + " (.unit)";
    return name.substr(0, name.find_last_of('.'));  // all of it where there is no dot
  }

  /// As an error names it: `'conv1.weight', 150 of float32`.
  [[nodiscard]] std::string to_string() const {
    std::string text = "'" + name + "', " + std::to_string(size()) + " of " + std::string(name_of(type()));
    if (type() == ElementType::bytes) text += " (" + std::to_string(element_bytes()) + " each)";
    if (buffer) return text + ", a buffer";
    if (owned) text += ", owned";
    if (options.unit) text += ", unit " + std::to_string(*options.unit);
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
/// Made of a range of ParameterRefs, of Parameters, or of pointers to Parameters; what is added later follows.
template <MemorySpace Space = Host>
class ParameterList {
 public:
  ParameterList() = default;
  template <class Range>
    requires(!std::same_as<std::remove_cvref_t<Range>, ParameterList>) && requires(Range& range, ParameterList& list) {
      list.add(*std::begin(range));
      std::end(range);
    }
  ParameterList(Range&& range) {  // NOLINT: a list of parameters is a ParameterList
    for (auto&& each : range) add(each);
  }

  template <FloatingElement T>
  ParameterList& add(const ParameterRef<T, Space>& parameter) {
    entries_.push_back({parameter.name, parameter.weight, parameter.gradient, parameter.options});
    return *this;
  }
  /// The training shares the parameter's state: the parameter may be moved afterwards.
  template <FloatingElement T>
  ParameterList& add(const Parameter<T, Space>& parameter) {
    const auto& state = parameter.state_;
    entries_.push_back({state->name, {}, {}, state->options, false, state});
    return *this;
  }
  template <FloatingElement T>
  ParameterList& add(const Parameter<T, Space>* parameter) {
    return add(*parameter);
  }
  template <Transferable T>
  ParameterList& add(const BufferRef<T, Space>& buffer) {
    entries_.push_back({buffer.name, buffer.values, {}, {}, true});
    return *this;
  }

  [[nodiscard]] const std::vector<detail::Entry<Space>>& entries() const noexcept { return entries_; }

 private:
  std::vector<detail::Entry<Space>> entries_;
};

namespace detail {

/// What one rank can see to be wrong with its list.
/// @throws MismatchError that names the parameter
template <MemorySpace Space>
void check_list(const std::vector<Entry<Space>>& entries, const ErrorContext& context) {
  struct Run {
    const std::byte* begin;
    const std::byte* end;
    const std::string* name;
  };
  std::vector<Run> runs;
  std::vector<const std::string*> names;
  const auto add = [&](const Entry<Space>& entry, Span<AnyElement, Space> span) {
    if (!span.empty()) runs.push_back({span.bytes(), span.bytes() + span.size_bytes(), &entry.name});
  };
  for (const auto& entry : entries) {
    names.push_back(&entry.name);
    add(entry, entry.value);
    if (entry.trained()) add(entry, entry.gradient);
    if (entry.buffer) continue;
    check_parameter(entry.name, entry.size(), entry.options);
    if (entry.trained() && !entry.owned && entry.gradient.size() != entry.value.size())
      throw MismatchError("'" + entry.name + "' has " + std::to_string(entry.value.size()) +
                              " elements, its gradient " + std::to_string(entry.gradient.size()),
                          context);
    if (entry.owned && entry.owned->in_training)
      throw MismatchError("'" + entry.name + "' is in a training already: end that one, or list it once", context);
    if (entry.owned && entry.owned->lost)
      throw MismatchError("'" + entry.name +
                              "' was held in shards by a training that has ended: call release() "
                              "before that ends",
                          context);
  }
  std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
  for (std::size_t i = 1; i < names.size(); ++i)
    if (*names[i] == *names[i - 1])
      throw MismatchError("two parameters have the name '" + *names[i] +
                              "': give each its own, and list a tied one once, with .uses = 2",
                          context);
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return std::less<>{}(a.begin, b.begin); });
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (std::less<>{}(runs[i].begin, runs[i - 1].end))
      throw MismatchError(*runs[i].name == *runs[i - 1].name
                              ? "the weight of '" + *runs[i].name + "' and its gradient overlap in memory"
                              : "'" + *runs[i - 1].name + "' and '" + *runs[i].name +
                                    "' overlap in memory: list a tied parameter once, with .uses = 2",
                          context);
}

}  // namespace detail

}  // namespace distx
