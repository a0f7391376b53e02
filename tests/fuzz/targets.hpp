// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include <distx/checkpoint.hpp>
#include <distx/checkpoint/detail/weight_source.hpp>
#include <distx/connect/control/inbox.hpp>

#include "data/digits_csv.hpp"
#include "data/mnist.hpp"

// The targets of the fuzzers: each returns normally for every input, or the program aborts.
namespace fuzz {

using Input = std::span<const std::byte>;

/// Aborts the program if an invariant does not hold.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// An input as a file.
class File {
 public:
  explicit File(Input input) : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
    require(descriptor_ >= 0);
    while (!input.empty()) {
      const auto count = ::write(descriptor_, input.data(), input.size());
      require(count > 0);
      input = input.subspan(static_cast<std::size_t>(count));
    }
  }
  File(File&&) = delete;
  ~File() { ::close(descriptor_); }

  [[nodiscard]] std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// A safetensors file: its header, and the shards that its metadata describes.
/// @post every byte of the data belongs to exactly one tensor, and a complete array has each element once
inline void safetensors(Input input) try {
  namespace detail = distx::checkpoint::detail;
  const File file(input);
  const distx::checkpoint::SafetensorsFile opened(file.path());
  std::size_t bytes = opened.header_bytes().size();
  for (const auto& tensor : opened.tensors()) {
    bytes += opened.bytes(tensor).size();
    require(opened.find(tensor.name) == &tensor);
  }
  require(bytes == input.size());
  detail::Manifest manifest;
  const detail::ShardIndex index(file.path(), {file.path()}, manifest);
  for (const auto& [name, tensor] : manifest.tensors) try {
      const auto elements = detail::elements_of(tensor.shape);
      require(elements.has_value());
      const auto bits = detail::find_file_type(tensor.type)->bits;
      if (bits % 8 != 0) continue;
      std::uint64_t found = 0;
      for (const auto& run : index.runs_of(name, tensor.shape, bits / 8, 0, *elements)) found += run.bytes.size();
      require(found == *elements * (bits / 8));
    } catch (const distx::CheckpointError&) {
    }
} catch (const distx::CheckpointError&) {
}

/// A checkpoint's manifest, with its checksum and with the right one.
/// @post what is read is written with the same content
inline void manifest(Input input) {
  namespace detail = distx::checkpoint::detail;
  const auto read = [](const std::string& text) {
    try {
      const auto found = detail::parse_manifest(text, "checkpoint.json");
      for (const auto& file : found.files) require(detail::is_plain_name(file.name));
      const std::string written = detail::to_text(found);
      require(detail::to_text(detail::parse_manifest(written, "checkpoint.json")) == written);
    } catch (const distx::CheckpointError&) {
    }
  };
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  read(text);
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return;
  json.erase("crc32");
  json["crc32"] = detail::checksum(json.dump());
  read(json.dump());
}

/// An IDX file of images or labels.
inline void idx(Input input) {
  const File file(input);
  const auto read = [&]<std::size_t Extents>(std::integral_constant<std::size_t, Extents>) {
    try {
      const auto found = examples::detail::read_idx<Extents>(file.path());
      std::size_t bytes = 1;
      for (const auto extent : found.extents) bytes *= extent;
      require(found.bytes.size() == bytes);
    } catch (const distx::DataError&) {
    }
  };
  read(std::integral_constant<std::size_t, 1>());
  read(std::integral_constant<std::size_t, 3>());
}

/// Comma-separated digits.
inline void csv(Input input) try {
  const File file(input);
  const auto digits = examples::read_digits_csv(file.path());
  require(digits.images.size() == digits.size() * digits.pixels());
  for (const float pixel : digits.images) require(pixel >= 0 && pixel <= 1);
  for (const auto label : digits.labels) require(label <= 9);
} catch (const distx::DataError&) {
}

/// The frames that a connection over TCP receives.
/// @post a frame is written with the bytes that it was read from
inline void frames(Input input) {
  namespace control = distx::detail::control;
  const std::string_view received(reinterpret_cast<const char*>(input.data()), input.size());
  control::Inbox inbox;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t before = begin;
    const auto frame = control::parse_frame(received, begin);
    if (!frame || begin == before) {
      require(begin == before && (!frame || !inbox.take(*frame)));
      return;
    }
    require(control::text_of(*frame) == received.substr(before, begin - before));
    try {
      control::raise(*frame, {});
    } catch (const distx::Error& error) {
      require(error.message().size() <= begin - before);
    }
    (void)inbox.take(*frame);
  }
}

}  // namespace fuzz
