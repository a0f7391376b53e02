// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <deque>
#include <set>
#include <tuple>

#include "distx/checkpoint/detail/file_array.hpp"
#include "distx/checkpoint/detail/manifest.hpp"
#include "distx/checkpoint/detail/shard_writer.hpp"
#include "distx/checkpoint/safetensors.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// A tensor of a file: where its data is, and the checksum that it shall have.
struct StoredTensor {
  const SafetensorsFile* file;
  const SafetensorsTensor* tensor;
  std::span<const std::byte> bytes;
  std::optional<std::uint32_t> checksum;
};

/// The files of a checkpoint, and where in them each array is.
class ShardIndex {
 public:
  /// Maps and validates the files that a manifest names, without reading their data.
  /// @throws CheckpointError
  ShardIndex(const std::filesystem::path& folder, const Manifest& manifest)
      : folder_(folder), manifest_(manifest), advice_("use an older checkpoint") {
    for (const auto& described : manifest.files) {
      const auto& file = files_.emplace_back(folder / described.name);
      if (file.size() != described.bytes)
        fail(file,
             "has " + std::to_string(file.size()) + " bytes, and the manifest says " + std::to_string(described.bytes));
      if (checksum(file.header_bytes()) != described.header_checksum)
        fail(file, "has a header without the manifest's checksum: it is damaged or of another checkpoint");
      add_tensors(file);
    }
  }
  /// Maps and validates files that no manifest describes, whole or sharded, and describes their tensors in `manifest`.
  /// @param path  what the files are called in messages
  /// @throws CheckpointError
  ShardIndex(const std::filesystem::path& path, const std::vector<std::filesystem::path>& files, Manifest& manifest)
      : folder_(path), manifest_(manifest), advice_("use files that are complete") {
    for (const auto& each : files) {
      const auto& file = files_.emplace_back(each);
      manifest.files.push_back({each.filename().string(), file.size(), checksum(file.header_bytes())});
      describe_tensors(file, manifest);
    }
    for (const auto& [name, tensor] : manifest.tensors)
      if (!elements_of(tensor.shape))
        fail(*parts_.at(name).front().file, "has tensor '" + name + "' in a box with too many elements");
  }

  /// Returns the tensors of all files, in the order of the files and of their data.
  /// @throws CheckpointError
  [[nodiscard]] std::vector<StoredTensor> stored() const {
    std::vector<StoredTensor> all;
    for (const auto& file : files_) {
      const auto checksums = object_of(file, checksums_key);
      const auto first = static_cast<std::ptrdiff_t>(all.size());
      for (const auto& tensor : file.tensors()) {
        auto& each = all.emplace_back(StoredTensor{&file, &tensor, file.bytes(tensor), std::nullopt});
        if (const auto found = checksums.find(tensor.name); found != checksums.end() && found->is_number_unsigned())
          each.checksum = whole_number<std::uint32_t>(*found);
      }
      std::sort(all.begin() + first, all.end(), [](const StoredTensor& a, const StoredTensor& b) {
        return std::pair(a.tensor->begin, a.tensor->end) < std::pair(b.tensor->begin, b.tensor->end);
      });
    }
    return all;
  }
  /// @throws CheckpointError that names file and tensor, unless a tensor has its checksum
  void check(const StoredTensor& stored, std::uint32_t actual) const {
    if (stored.checksum != actual)
      fail(*stored.file, "has damaged data: tensor '" + stored.tensor->name + "' does not have its checksum");
  }
  /// Checks the data of every `step`-th tensor from `first` on.
  /// @throws CheckpointError that names file and tensor
  void verify(std::size_t first, std::size_t step) const {
    const auto all = stored();
    for (std::size_t i = first; i < all.size(); i += step) verify(all[i]);
  }
  /// Checks the data of a tensor.
  /// @throws CheckpointError that names file and tensor
  void verify(const StoredTensor& stored) const {
    std::uint32_t sum = 0;
    each_block(stored.bytes, [&](std::span<const std::byte> block) { sum = checksum(block, sum); });
    check(stored, sum);
  }

  /// Compares names, types and shapes with those of a training.
  /// @throws CheckpointError with all differences
  template <MemorySpace Space>
  void compare(const std::vector<FileArray<Space>>& wanted, const distx::detail::TrainingCounters& counters) const {
    std::vector<std::string> differences;
    std::set<std::string> names;
    for (const auto& array : wanted) {
      names.insert(array.name);
      const auto found = manifest_.tensors.find(array.name);
      const std::string mine = std::string(array.type) + " " + to_string(array.shape);
      if (found == manifest_.tensors.end()) {
        differences.push_back("'" + array.name + "', " + mine + ", is not in the checkpoint");
      } else if (found->second.type != array.type || found->second.shape != array.shape) {
        differences.push_back("'" + array.name + "' is " + found->second.type + " " + to_string(found->second.shape) +
                              " in the checkpoint and " + mine + " in the training");
      }
    }
    for (const auto& [name, tensor] : manifest_.tensors)
      if (!names.contains(name)) differences.push_back("'" + name + "' is not in the training");
    std::set<std::string> counted;
    for (const auto& [name, updates] : manifest_.counters.updates) counted.insert(name);
    for (const auto& [name, updates] : counters.updates)
      if (!counted.contains(name)) differences.push_back("'" + name + "' is trained, and was not");
    if (differences.empty()) return;
    std::string text;
    for (const auto& difference : differences) text += (text.empty() ? "" : ", ") + difference;
    throw CheckpointError("the checkpoint '" + folder_.string() + "' does not fit the training: " + text +
                              "; construct the training with the model and the optimizer that were saved",
                          {.operation = "load"});
  }

  /// A contiguous part of an array, from element `begin` on.
  struct Run {
    std::uint64_t begin;
    std::span<const std::byte> bytes;
  };
  /// Returns where elements [begin, begin + size) of an array are, in their order.
  /// @throws CheckpointError if the files do not have each element once
  [[nodiscard]] std::vector<Run> runs_of(const std::string& name, const Shape& shape, std::size_t element_bytes,
                                         std::uint64_t begin, std::uint64_t size) const {
    std::vector<Run> runs;
    const auto found = parts_.find(name);
    if (size > 0 && found != parts_.end())
      for (const StoredPart& part : found->second) {
        const auto bytes = part.file->bytes(*part.tensor);
        each_common_run(
            part.box(), {Shape(shape.size()), shape}, part.box(),
            [&](std::uint64_t run_begin, std::uint64_t from, std::uint64_t run_size) {
              const auto first = std::max(begin, run_begin);
              const auto last = std::min(begin + size, run_begin + run_size);
              if (first < last)
                runs.push_back({first, bytes.subspan(static_cast<std::size_t>(from + first - run_begin) * element_bytes,
                                                     static_cast<std::size_t>(last - first) * element_bytes)});
            });
      }
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
    std::uint64_t end = begin;
    for (const auto& run : runs) {
      if (run.begin != end) break;
      end += run.bytes.size() / element_bytes;
    }
    if (end != begin + size || (!runs.empty() && runs.back().begin >= end)) fail_incomplete(name);
    return runs;
  }
  /// Calls f(offsets, shape, bytes) for each part of an array.
  template <class F>
  void each_part(const std::string& name, F&& f) const {
    if (const auto found = parts_.find(name); found != parts_.end())
      for (const StoredPart& part : found->second) f(part.offsets, part.tensor->shape, part.file->bytes(*part.tensor));
  }
  /// Calls f(to, from) for the copies that fill what this rank holds of an array.
  /// @throws CheckpointError if the files do not have each element once
  template <MemorySpace Space, class F>
  void each_copy(const FileArray<Space>& array, F&& f) const {
    std::vector<const StoredPart*> used;
    std::uint64_t elements = 0;
    const auto found = parts_.find(array.name);
    for (auto& [box, begin, size] : rectangles_of(array.part.extents, array.begin, array.size)) {
      for (std::size_t d = 0; d < box.offsets.size(); ++d) box.offsets[d] += array.part.offsets[d];
      for (std::size_t i = 0; found != parts_.end() && i < found->second.size(); ++i) {
        const StoredPart& part = found->second[i];
        const ArrayBox common = box & part.box();
        if (common.volume() == 0) continue;
        elements += common.volume();
        used.push_back(&part);
        const auto bytes = part.file->bytes(*part.tensor);
        each_common_run(common, array.part, part.box(), [&](std::uint64_t at, std::uint64_t from, std::uint64_t count) {
          f(array.bytes_at(at, count), bytes.subspan(static_cast<std::size_t>(from) * array.element_bytes,
                                                     static_cast<std::size_t>(count) * array.element_bytes));
        });
      }
    }
    if (elements != array.size || overlap(std::move(used))) fail_incomplete(array.name);
  }

 private:
  /// A tensor of a file, and where it is in the whole array.
  struct StoredPart {
    const SafetensorsFile* file;
    const SafetensorsTensor* tensor;
    Shape offsets;

    [[nodiscard]] ArrayBox box() const { return {offsets, tensor->shape}; }
  };

  /// Returns whether some element is in two of an array's parts.
  [[nodiscard]] static bool overlap(std::vector<const StoredPart*> parts) {
    std::sort(parts.begin(), parts.end(), [](const StoredPart* a, const StoredPart* b) {
      return std::tie(a->offsets, a) < std::tie(b->offsets, b);
    });
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    if (!parts.empty() && parts[0]->offsets.empty()) return parts.size() > 1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::uint64_t end = parts[i]->offsets[0] + parts[i]->tensor->shape[0];
      for (std::size_t j = i + 1; j < parts.size() && parts[j]->offsets[0] < end; ++j)
        if ((parts[i]->box() & parts[j]->box()).volume() > 0) return true;
    }
    return false;
  }
  [[noreturn]] void fail_incomplete(const std::string& name) const {
    throw CheckpointError(
        "the files of '" + folder_.string() + "' do not have every element of tensor '" + name + "' once; " + advice_,
        {.operation = "checkpoint"});
  }

  [[noreturn]] void fail(const SafetensorsFile& file, const std::string& what) const {
    throw CheckpointError("'" + file.path() + "' " + what + "; " + advice_, {.operation = "checkpoint"});
  }
  /// Returns a JSON object of a file's metadata.
  [[nodiscard]] nlohmann::json object_of(const SafetensorsFile& file, const char* key) const {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) fail(file, "has no " + std::string(key) + " in its metadata");
    const auto refuse = [&] { fail(file, "has metadata " + std::string(key) + " that is nested too deeply"); };
    auto json = parse_shallow(found->second, refuse, false);
    if (!json.is_object()) fail(file, "has metadata " + std::string(key) + " that is not a JSON object");
    return json;
  }
  /// Returns where a file's tensor begins in the whole array.
  [[nodiscard]] Shape offsets_of(const SafetensorsFile& file, const nlohmann::json& sharding,
                                 const std::string& name) const {
    try {
      return shape_of(sharding.at(name).at(offsets_key));
    } catch (const nlohmann::json::exception&) {
      fail(file, "does not say where tensor '" + name + "' is in the whole array");
    }
  }
  /// Adds a file's tensors, whose whole arrays reach as far as their parts.
  void describe_tensors(const SafetensorsFile& file, Manifest& manifest) {
    if (file.metadata().contains(step_key))
      fail(file, "is a part of a checkpoint without its " + std::string(manifest_name));
    const bool sharded = file.metadata().contains(sharding_key);
    const auto sharding = sharded ? object_of(file, sharding_key) : nlohmann::json();
    for (const auto& tensor : file.tensors()) {
      auto offsets = sharded ? offsets_of(file, sharding, tensor.name) : Shape(tensor.shape.size());
      auto& whole =
          manifest.tensors.try_emplace(tensor.name, Manifest::ManifestTensor{tensor.type, tensor.shape}).first->second;
      bool valid = whole.type == tensor.type && whole.shape.size() == tensor.shape.size() &&
                   offsets.size() == tensor.shape.size();
      for (std::size_t d = 0; valid && d < offsets.size(); ++d) {
        valid = offsets[d] <= UINT64_MAX - tensor.shape[d];
        whole.shape[d] = std::max(whole.shape[d], offsets[d] + tensor.shape[d]);
      }
      if (!valid)
        fail(file, "has tensor '" + tensor.name + "' " + tensor.type + " " + to_string(tensor.shape) + " at " +
                       to_string(offsets) + ", which does not fit the other files' " + whole.type + " " +
                       to_string(whole.shape));
      parts_[tensor.name].push_back({&file, &tensor, std::move(offsets)});
    }
  }
  void add_tensors(const SafetensorsFile& file) {
    const auto sharding = object_of(file, sharding_key);
    for (const auto& tensor : file.tensors()) {
      const Shape offsets = offsets_of(file, sharding, tensor.name);
      const auto whole = manifest_.tensors.find(tensor.name);
      if (whole == manifest_.tensors.end()) continue;  // for other readers
      const Shape& shape = whole->second.shape;
      bool within =
          whole->second.type == tensor.type && tensor.shape.size() == shape.size() && offsets.size() == shape.size();
      for (std::size_t d = 0; within && d < shape.size(); ++d)
        within = offsets[d] <= shape[d] && tensor.shape[d] <= shape[d] - offsets[d];
      if (!within)
        fail(file, "has tensor '" + tensor.name + "' outside of the array " + whole->second.type + " " +
                       to_string(shape) + " that the manifest describes");
      parts_[tensor.name].push_back({&file, &tensor, offsets});
    }
  }

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::string advice_;  // for the user
  std::deque<SafetensorsFile> files_;
  std::map<std::string, std::vector<StoredPart>> parts_;
};

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
