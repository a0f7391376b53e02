// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>

#include "distx/checkpoint/detail/file_array.hpp"
#include "distx/checkpoint/detail/manifest.hpp"
#include "distx/checkpoint/detail/safetensors_header.hpp"
#include "distx/checkpoint/detail/snapshot.hpp"
#include "distx/memory/buffer.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// The keys of a shard's metadata: those of PyTorch's distributed checkpoints in safetensors files, and distx's.
inline constexpr const char* sharding_key = "DCP_SHARDING_INFO";
inline constexpr const char* offsets_key = "saved_offsets";
inline constexpr const char* checksums_key = "distx.crc32";
inline constexpr const char* step_key = "distx.step";

/// Collects one rank's shares and writes them as safetensors files, in which a name occurs once: a share of a matrix
/// that begins or ends inside a row takes up to three files, of an array with n dimensions up to 2n - 1.
class ShardWriter {
 public:
  /// Adds a box of an array to the file of that number.
  /// @param bytes  borrowed until `write` returns
  void add(std::size_t file, const std::string& name, std::string_view type, ArrayBox box,
           std::span<const std::byte> bytes) {
    if (files_.size() <= file) files_.resize(file + 1);
    files_[file].push_back(
        {{name, std::string(type), std::move(box.extents), 0, bytes.size()}, std::move(box.offsets), bytes});
  }
  /// Adds a rank's share of every array.
  /// @param snapshot  is filled with a copy; null: host memory is borrowed until `write` returns
  template <MemorySpace Space>
  void add(const std::vector<FileArray<Space>>& arrays, typename Space::stream after, Snapshot* snapshot = nullptr) {
    if (snapshot != nullptr) {
      std::size_t bytes = 0;
      for (const auto& array : arrays) bytes += array.bytes_at(array.share_begin, array.share_size).size();
      snapshot->begin(bytes);
    }
    for (const auto& array : arrays) {
      auto rectangles = rectangles_of(array.part.extents, array.share_begin, array.share_size);
      for (std::size_t k = 0; k < rectangles.size(); ++k) {
        auto& [box, begin, size] = rectangles[k];
        for (std::size_t d = 0; d < box.offsets.size(); ++d) box.offsets[d] += array.part.offsets[d];
        add(k, array.name, array.type, std::move(box), on_host<Space>(array.bytes_at(begin, size), after, snapshot));
      }
    }
    after.synchronize();
  }
  /// Adds a whole value of no dimensions.
  void add_scalar(const std::string& name, float value) {
    auto& copy = copies_.emplace_back(sizeof value);
    std::memcpy(copy.data(), &value, sizeof value);
    add(0, name, "F32", {}, {copy.data(), copy.size()});
  }

  /// Writes the files, of which there may be none, and makes them durable.
  /// @param path  of the folder, for messages
  /// @throws CheckpointError
  [[nodiscard]] std::vector<ManifestFile> write(const Descriptor& folder, const std::filesystem::path& path, int rank,
                                                std::uint64_t step) {
    std::vector<std::vector<TensorToWrite>*> used;
    for (auto& tensors : files_)
      if (!tensors.empty()) used.push_back(&tensors);
    std::vector<ManifestFile> written;
    for (std::size_t k = 0; k < used.size(); ++k)
      written.push_back(write_file(folder, path, name_of(rank, k, used.size()), *used[k], step));
    sync(folder, path);
    return written;
  }

 private:
  struct TensorToWrite {
    SafetensorsTensor tensor;
    Shape offsets;
    std::span<const std::byte> bytes;
  };

  template <MemorySpace Space>
  std::span<const std::byte> on_host(Span<std::byte, Space> bytes, typename Space::stream after, Snapshot* snapshot) {
    if constexpr (HostAccessible<Space>)
      if (snapshot == nullptr) return {bytes.data(), bytes.size()};
    const auto to = [&] {
      if (snapshot != nullptr) return snapshot->take(bytes.size());
      const auto& memory = copies_.emplace_back(bytes.size(), uninitialized);
      return std::span<std::byte>(memory.data(), memory.size());
    }();
    copy(after, Span<std::byte>(to.data(), to.size()), Span<const std::byte, Space>(bytes.data(), bytes.size()));
    return to;
  }
  [[nodiscard]] static std::string name_of(int rank, std::size_t file, std::size_t files) {
    const auto number = [](std::size_t value) {
      const std::string text = std::to_string(value);
      return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
    };
    return "shard-" + number(static_cast<std::size_t>(rank) + 1) + "-model-" + number(file + 1) + "-of-" +
           number(files) + ".safetensors";
  }
  [[nodiscard]] static ManifestFile write_file(const Descriptor& folder, const std::filesystem::path& path,
                                               const std::string& name, std::vector<TensorToWrite>& tensors,
                                               std::uint64_t step) {
    std::vector<SafetensorsTensor> listed;
    sort_for_alignment(tensors, &TensorToWrite::tensor);
    nlohmann::json sharding = nlohmann::json::object(), checksums = nlohmann::json::object();
    for (const auto& each : tensors) {
      sharding[each.tensor.name] = {{offsets_key, each.offsets}};
      checksums[each.tensor.name] = checksum(each.bytes);
      listed.push_back(each.tensor);
    }
    const std::string header = make_header(listed, {{"format", "pt"},
                                                    {"DCP_VERSION", "1.0"},
                                                    {sharding_key, sharding.dump()},
                                                    {checksums_key, checksums.dump()},
                                                    {step_key, std::to_string(step)}});
    NewFile file(folder.native_handle(), name, path / name);
    file.write(std::as_bytes(std::span(header)));
    for (const auto& each : tensors) file.write(each.bytes);
    file.finish();
    const std::uint64_t data = listed.empty() ? 0 : listed.back().end;
    return {name, header.size() + data, checksum(header)};
  }

  std::vector<std::vector<TensorToWrite>> files_;
  std::vector<Buffer<std::byte, Host>> copies_;
};

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
