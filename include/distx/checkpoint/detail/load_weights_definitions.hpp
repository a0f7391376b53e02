// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "distx/checkpoint/detail/state_of.hpp"
#include "distx/checkpoint/detail/together.hpp"
#include "distx/checkpoint/detail/weight_source.hpp"
#include "distx/checkpoint/load_weights.hpp"
#include "distx/parallel/detail/engine/engine_interface.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// A weight, a buffer or an array of master weights, and the tensor that it is loaded from.
template <MemorySpace Space>
struct LoadedWeight {
  FileArray<Space> array;
  ElementType type = ElementType::bytes;
  std::string source;
  bool transposed = false;
  ElementType source_type = ElementType::bytes;
  std::size_t source_bytes = 1;  ///< of an element
  Shape source_shape{};

  /// Whether this rank's part is all of the array.
  [[nodiscard]] bool is_whole() const noexcept { return array.part.extents == array.shape; }
  [[nodiscard]] bool is_copy() const noexcept { return !transposed && type == source_type && is_whole(); }
};

/// Returns what a training's weights are loaded from.
/// @throws CheckpointError with all differences
template <MemorySpace Space>
[[nodiscard]] std::vector<LoadedWeight<Space>> match(const TrainingState<Space>& state, const Manifest& manifest,
                                                     const WeightOptions& options, const std::string& path) {
  constexpr std::string_view master = ".master";
  std::vector<LoadedWeight<Space>> weights;
  std::vector<std::string> differences;
  std::set<std::string> used;
  for (const auto& each : state.arrays) {
    std::string name = each.name;
    const bool is_state = name.starts_with(optimizer_prefix);
    if (is_state && !name.ends_with(master)) continue;
    if (is_state) name = name.substr(optimizer_prefix.size(), name.size() - optimizer_prefix.size() - master.size());
    LoadedWeight<Space> weight{FileArray<Space>(each), each.values.type(), options.rename ? options.rename(name) : name,
                               options.transposed && options.transposed(name)};
    if (weight.source.empty() || elements_of(weight.array.shape) == 0) continue;
    used.insert(weight.source);
    const Shape& shape = weight.array.shape;
    const std::string mine =
        "'" + name + "', " + std::string(weight.array.type) + " " + to_string(shape) + " in the training,";
    const std::string unrounded = std::string(optimizer_prefix) + weight.source + std::string(master);
    if (weight.type == ElementType::f32 && manifest.tensors.contains(unrounded)) weight.source = unrounded;
    const auto found = manifest.tensors.find(weight.source);
    if (found == manifest.tensors.end()) {
      if (!is_state)
        differences.push_back(mine + " is not in the file" +
                              (weight.source == name ? "" : " as '" + weight.source + "'"));
      continue;
    }
    const FileType* const type = find_file_type(found->second.type);
    weight.source_shape = found->second.shape;
    weight.source_type = type == nullptr ? ElementType::bytes : type->element;
    const Shape& theirs = weight.source_shape;
    // Parameters without rows are vectors; with rows, the other dimensions are the columns.
    bool fits = elements_of(theirs) == elements_of(shape);
    if (weight.transposed)
      fits = theirs.size() == 2 && shape.size() == 2 && weight.is_whole() && theirs[0] == shape[1] &&
             theirs[1] == shape[0];
    else if (shape.size() == 2)
      fits = fits && !theirs.empty() && theirs[0] == shape[0];
    const bool same = found->second.type == weight.array.type;
    if (!fits || !(same || convertible(weight.source_type, weight.type))) {
      if (!is_state)
        differences.push_back(mine + " is " + (weight.transposed ? "transposed " : "") + found->second.type + " " +
                              to_string(theirs) + " in the file" +
                              (weight.transposed && !weight.is_whole() ? ", and sharded by the mesh" : ""));
      continue;
    }
    if (same) weight.source_type = weight.type;  // also types that distx only carries
    weight.source_bytes = same ? weight.array.element_bytes : size_of(weight.source_type);
    weights.push_back(std::move(weight));
  }
  if (!options.ignore_others)
    for (const auto& [name, tensor] : manifest.tensors)
      if (!used.contains(name) && !name.starts_with(optimizer_prefix))
        differences.push_back("'" + name + "', " + tensor.type + " " + to_string(tensor.shape) +
                              " in the file, is not in the training");
  if (differences.empty()) return weights;
  std::string text;
  for (const auto& difference : differences) text += (text.empty() ? "" : "; ") + difference;
  throw CheckpointError("the weights of '" + path + "' do not fit the training: " + text +
                            "; construct the training with this model, or set .rename, .transposed or .ignore_others",
                        {.operation = "load_weights"});
}

/// Writes the elements that this rank holds of a weight, in the training's order and type, to `to`.
template <MemorySpace Space>
void convert(const ShardIndex& index, const LoadedWeight<Space>& weight, std::byte* to) {
  const auto& array = weight.array;
  const std::size_t width = weight.source_bytes;
  const auto set = [&](std::uint64_t at, const std::byte* from, std::size_t count) {
    std::byte* const target = to + (at - array.begin) * array.element_bytes;
    if (weight.type == weight.source_type)
      std::memcpy(target, from, count * width);
    else
      convert(target, weight.type, from, weight.source_type, count);
  };
  if (!weight.transposed) {
    const auto runs = index.runs_of(weight.source, weight.source_shape, width, 0, *elements_of(weight.source_shape));
    auto run = runs.begin();  // both are in the order of the file
    each_common_run(array.part, {Shape(array.shape.size()), array.shape}, array.part,
                    [&](std::uint64_t begin, std::uint64_t from, std::uint64_t size) {
                      const auto last = std::min(from + size, array.begin + array.size);
                      for (auto at = std::max(from, array.begin); at < last;) {
                        const auto in_file = begin + (at - from);
                        while (run->begin + run->bytes.size() / width <= in_file) ++run;
                        const auto skipped = in_file - run->begin;
                        const auto count = std::min<std::uint64_t>(last - at, run->bytes.size() / width - skipped);
                        set(at, run->bytes.data() + skipped * width, count);
                        at += count;
                      }
                    });
    return;
  }
  // Row r of the training is column r of the file.
  const std::uint64_t columns = array.shape[1], end = array.begin + array.size;
  index.each_part(weight.source, [&](const Shape& offsets, const Shape& extents, std::span<const std::byte> bytes) {
    for (std::uint64_t j = 0; j < extents[1]; ++j) {
      const std::uint64_t row = (offsets[1] + j) * columns;
      const std::uint64_t first = std::max(row + offsets[0], array.begin);
      const std::uint64_t last = std::min(row + offsets[0] + extents[0], end);
      for (std::uint64_t at = first; at < last; ++at)
        set(at, bytes.data() + ((at - row - offsets[0]) * extents[1] + j) * width, 1);
    }
  });
}

template <MemorySpace Space>
void load_weights(const std::filesystem::path& path, const SavedTraining<Space>& training, const WeightOptions& options,
                  const std::source_location& location) {
  auto& engine = training.engine;
  auto& comm = training.comm;
  const ErrorContext context{"load_weights", comm.backend(), comm.rank(), comm.size(), location};
  const auto state = state_of(training, location);
  std::optional<WeightSource> source;
  std::vector<LoadedWeight<Space>> weights;
  std::string read;  // must be the same on every rank
  on_every_rank(comm, context, [&] {
    source.emplace(path);
    const auto& index = source->index();
    weights = match(state, source->manifest(), options, path.string());
    source->verify(static_cast<std::size_t>(comm.rank()), static_cast<std::size_t>(comm.size()));
    for (const auto& weight : weights) {
      static_cast<void>(index.runs_of(weight.source, weight.source_shape, weight.source_bytes, 0,
                                      *elements_of(weight.source_shape)));  // throws if a part is absent
      read += weight.array.name + '\n' + weight.source + '\n';
    }
    read += to_text(source->manifest());
  });
  check_equal(comm, checksum(read),
              "read different weights, this rank from '" + path.string() +
                  "'; use a path that all of them see, and the same options",
              context);
  engine.restore(distx::detail::StepCall::between_steps, state.counters, training.stream, location, [&] {
    for (const auto& weight : weights) {
      const auto& array = weight.array;
      if (weight.is_copy()) {
        for (const auto& run :
             source->index().runs_of(weight.source, weight.source_shape, array.element_bytes, array.begin, array.size))
          copy(training.stream, array.bytes_at(run.begin, run.bytes.size() / array.element_bytes),
               Span<const std::byte>(run.bytes.data(), run.bytes.size()));
      } else {
        std::vector<std::byte> converted(array.memory.size());
        convert(source->index(), weight, converted.data());
        copy(training.stream, array.memory, Span<const std::byte>(converted.data(), converted.size()));
        training.stream.synchronize();  // before this memory is freed
      }
    }
    training.stream.synchronize();
    return true;
  });
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
