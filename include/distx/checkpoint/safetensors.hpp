// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distx/checkpoint/detail/file.hpp"
#include "distx/checkpoint/safetensors_tensor.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

/// A safetensors file, mapped into memory: names, types, shapes and bytes of its tensors. Move-only.
///
/// The constructor validates all of the header before any data is touched; nothing is allocated that is larger than the
/// file.
/// @code
/// const distx::checkpoint::SafetensorsFile file("model.safetensors");
/// for (const auto& tensor : file.tensors()) use(tensor.name, tensor.shape, file.bytes(tensor));
/// @endcode
class SafetensorsFile {
 public:
  /// The longest header that the format allows, in bytes.
  static constexpr std::uint64_t longest_header = 100'000'000;

  /// Opens and validates a file.
  /// @throws CheckpointError that names the file and the tensor: if it cannot be read; if the header exceeds the file
  ///   or the format's limit, is not JSON, names something twice or has unknown members or types; or if the tensors'
  ///   bytes do not have the size of their shape and type or do not fill the file without holes and overlaps
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Returns the tensors in the order of their names.
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const noexcept { return tensors_; }
  /// Returns the texts of `__metadata__`.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// Returns the tensor of that name, or null.
  [[nodiscard]] const SafetensorsTensor* find(std::string_view name) const noexcept {
    const auto found =
        std::lower_bound(tensors_.begin(), tensors_.end(), name,
                         [](const auto& tensor, std::string_view wanted) { return tensor.name < wanted; });
    return found != tensors_.end() && found->name == name ? &*found : nullptr;
  }
  /// Returns a tensor's bytes, row-major and little-endian, in any alignment; valid as long as this object.
  /// @param tensor  one of `tensors()`
  [[nodiscard]] std::span<const std::byte> bytes(const SafetensorsTensor& tensor) const noexcept {
    return data_.subspan(static_cast<std::size_t>(tensor.begin), static_cast<std::size_t>(tensor.end - tensor.begin));
  }
  /// Returns the bytes before the data: the length of the header and the header.
  [[nodiscard]] std::span<const std::byte> header_bytes() const noexcept {
    return map_.bytes().first(map_.bytes().size() - data_.size());
  }
  /// Returns the size of the file in bytes.
  [[nodiscard]] std::uint64_t size() const noexcept { return map_.bytes().size(); }

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  detail::MappedFile map_;
  std::span<const std::byte> data_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written by `write_safetensors`; borrows its bytes.
struct SafetensorsInput {
  std::string name;
  std::string type;  ///< the format's name, such as "F32"
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes a safetensors file, which appears under its name once it is complete and durable.
///
/// @param path  must not exist
/// @throws InvalidArgument for a tensor of an unknown type or the wrong number of bytes, or a name that occurs twice
/// @throws CheckpointError if the file exists or cannot be written
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsInput>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace distx::inline DISTX_ABI::checkpoint
