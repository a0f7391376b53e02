// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "distx/checkpoint/detail/file.hpp"
#include "distx/checkpoint/detail/safetensors_header.hpp"

namespace distx::checkpoint {

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
  explicit SafetensorsFile(const std::filesystem::path& path) : path_(path.string()), map_(path) {
    const auto all = map_.bytes();
    std::uint64_t length = 0;
    if (all.size() < sizeof length)
      fail("has " + std::to_string(all.size()) + " bytes, too few for the length of a header");
    std::memcpy(&length, all.data(), sizeof length);  // little-endian
    if constexpr (std::endian::native == std::endian::big) {
      auto* const bytes = reinterpret_cast<unsigned char*>(&length);
      std::reverse(bytes, bytes + sizeof length);
    }
    if (length > longest_header)
      fail("has a header of " + std::to_string(length) + " bytes, more than the format's " +
           std::to_string(longest_header));
    if (length > all.size() - sizeof length)
      fail("ends inside its header of " + std::to_string(length) + " bytes, after " + std::to_string(all.size()) +
           " bytes");
    data_ = all.subspan(sizeof length + static_cast<std::size_t>(length));
    const std::string_view text(reinterpret_cast<const char*>(all.data()) + sizeof length,
                                static_cast<std::size_t>(length));
    if (const auto wrong = detail::read_header(text, data_.size(), tensors_, metadata_); !wrong.empty()) fail(wrong);
  }

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
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError("'" + path_ + "' " + what + "; it is damaged or not a safetensors file: use another one",
                          {.operation = "checkpoint"});
  }

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
inline void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsInput>& tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  std::vector<SafetensorsTensor> heads;
  std::vector<const SafetensorsInput*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  detail::sort_for_alignment(order);
  for (const auto* tensor : order)
    heads.push_back({tensor->name, tensor->type, tensor->shape, 0, tensor->bytes.size()});
  const std::string header = detail::make_header(heads, metadata);
  detail::OutputFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const auto* tensor : order) file.write(tensor->bytes);
  file.finish();
}

}  // namespace distx::checkpoint
