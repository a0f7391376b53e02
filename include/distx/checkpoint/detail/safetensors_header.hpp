// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "distx/checkpoint/detail/safetensors_types.hpp"
#include "distx/checkpoint/safetensors_tensor.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// Receives a header's JSON value by value, so that it never takes more memory than what is valid in it.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::string wrong;  // empty if nothing is

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected("the number " + text); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (where_ == Where::shape) {
      tensors.back().shape.push_back(number);
      return true;
    }
    if (where_ != Where::offsets) return unexpected("a number");
    if (offsets_ == 2) return fail("more than two data_offsets");
    (offsets_++ == 0 ? tensors.back().begin : tensors.back().end) = number;
    return true;
  }
  bool string(string_t& text) override {
    if (where_ == Where::metadata) {
      metadata[key_] = std::move(text);
      return true;
    }
    if (where_ != Where::tensor || key_ != "dtype") return unexpected("a text");
    if (find_file_type(text) == nullptr) return fail("the unknown type '" + shortened(text) + "'");
    tensors.back().type = std::move(text);
    return true;
  }
  bool key(string_t& name) override {
    if (where_ == Where::root) {
      if (!names_.insert(name).second) return repeated(name);
      members_.clear();
    } else if (where_ == Where::metadata) {
      if (metadata.contains(name)) return repeated(name);
    } else {
      if (name != "dtype" && name != "shape" && name != "data_offsets")
        return fail("the unknown member '" + shortened(name) + "'");
      if (!members_.insert(name).second) return repeated(name);
    }
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override {
    if (where_ == Where::start) {
      where_ = Where::root;
    } else if (where_ == Where::root && key_ == "__metadata__") {
      where_ = Where::metadata;
    } else if (where_ == Where::root) {
      where_ = Where::tensor;
      tensors.push_back({key_, {}, {}, 0, 0});
    } else {
      return unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (where_ == Where::tensor) {
      for (const char* const member : {"dtype", "shape", "data_offsets"})
        if (!members_.contains(member)) return fail("no " + std::string(member));
      if (offsets_ != 2) return fail("fewer than two data_offsets");
    }
    where_ = where_ == Where::root ? Where::end : Where::root;
    return true;
  }
  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || key_ == "dtype") return unexpected("an array");
    where_ = key_ == "shape" ? Where::shape : Where::offsets;
    if (where_ == Where::offsets) offsets_ = 0;
    return true;
  }
  bool end_array() override {
    where_ = Where::tensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    wrong = "has a header that is not JSON in UTF-8 at byte " + std::to_string(position);
    return false;
  }
  [[nodiscard]] bool complete() const noexcept { return where_ == Where::end; }

 private:
  enum class Where : std::uint8_t { start, root, metadata, tensor, shape, offsets, end };

  /// A name from the file, which may be long, in a message.
  static std::string shortened(const std::string& text) {
    return text.size() <= 200 ? text : text.substr(0, 200) + "…";
  }
  bool fail(const std::string& what) {
    const bool named = where_ == Where::tensor || where_ == Where::shape || where_ == Where::offsets;
    wrong =
        named ? "describes tensor '" + shortened(tensors.back().name) + "' with " + what : "has a header with " + what;
    return false;
  }
  bool unexpected(const std::string& what) { return fail(what + " where none is allowed"); }
  bool repeated(const std::string& name) { return fail("the name '" + shortened(name) + "' twice"); }

  Where where_ = Where::start;
  std::string key_;
  int offsets_ = 0;
  std::set<std::string> names_;    // of the root
  std::set<std::string> members_;  // of the tensor
};

/// Reads a header and validates it against the size of the data after it.
///
/// @param tensors  receives the tensors, in the order of their names
/// @return what is wrong, to follow the name of the file in a message; empty if nothing is
[[nodiscard]] inline std::string read_header(std::string_view text, std::uint64_t data_bytes,
                                             std::vector<SafetensorsTensor>& tensors,
                                             std::map<std::string, std::string>& metadata) {
  if (text.empty() || text.front() != '{') return "has a header that does not begin with '{'";
  HeaderReader reader;
  const bool read = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  if (!read || !reader.complete()) return reader.wrong.empty() ? "has an incomplete header" : reader.wrong;
  for (const auto& tensor : reader.tensors) {
    const auto named = [&](const std::string& what) { return "has tensor '" + tensor.name + "' " + what; };
    const auto elements = elements_of(tensor.shape);
    const auto bytes = elements ? bytes_of(*find_file_type(tensor.type), *elements) : std::nullopt;
    if (!bytes) return named("of a shape that has too many elements, or fills no whole number of bytes");
    if (tensor.begin > tensor.end || tensor.end > data_bytes)
      return named("at bytes " + std::to_string(tensor.begin) + " to " + std::to_string(tensor.end) + " of " +
                   std::to_string(data_bytes));
    if (tensor.end - tensor.begin != *bytes)
      return named("in " + std::to_string(tensor.end - tensor.begin) + " bytes, and its shape and type need " +
                   std::to_string(*bytes));
  }
  auto& found = reader.tensors;
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  std::uint64_t end = 0;
  for (const auto& tensor : found) {
    if (tensor.begin != end)
      return "has tensor '" + tensor.name + "' at byte " + std::to_string(tensor.begin) +
             ", and the one before it ends at " + std::to_string(end);
    end = tensor.end;
  }
  if (end != data_bytes)
    return "has " + std::to_string(data_bytes) + " bytes of data, and its tensors end at " + std::to_string(end);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  tensors = std::move(found);
  metadata = std::move(reader.metadata);
  return {};
}

/// Orders items so that the tensor of each, which `tensor_of` returns, begins at a multiple of its element's size: the
/// largest elements first.
template <class Items, class F = std::identity>
void sort_for_alignment(Items& items, const F& tensor_of = {}) {
  std::ranges::stable_sort(items, std::greater<>(), [&](const auto& item) {
    const FileType* const type = find_file_type(std::invoke(tensor_of, item).type);
    return type == nullptr ? 0 : type->bits;
  });
}

/// Returns the length and the header of a file with these tensors, padded to a multiple of 8 bytes.
///
/// Sets the tensors' offsets, contiguous and in their order.
/// @param tensors  `end` - `begin` is the number of bytes
/// @throws InvalidArgument for a tensor that cannot be in a file, or a name that occurs twice
[[nodiscard]] inline std::string make_header(std::vector<SafetensorsTensor>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  const auto check = [](bool valid, const std::string& message) {
    if (!valid) throw InvalidArgument(message, {.operation = "write_safetensors"});
  };
  std::set<std::string> names{"__metadata__"};
  std::string text = "{";
  const auto add = [&](const std::string& name, const nlohmann::json& value) {
    try {
      text += (text.size() > 1 ? "," : "") + nlohmann::json(name).dump() + ":" + value.dump();
    } catch (const nlohmann::json::exception&) {
      check(false, "a name or a text is not UTF-8; use UTF-8");
    }
  };
  if (!metadata.empty()) add("__metadata__", metadata);
  std::uint64_t begin = 0;
  for (auto& tensor : tensors) {
    const FileType* const type = find_file_type(tensor.type);
    check(type != nullptr, "tensor '" + tensor.name + "' has the unknown type '" + tensor.type +
                               "'; use a name of the format, such as F32");
    check(names.insert(tensor.name).second,
          "the name '" + tensor.name + "' is used twice or reserved; give each tensor its own name");
    const std::uint64_t given = tensor.end - tensor.begin;
    const auto elements = elements_of(tensor.shape);
    const auto bytes = elements ? bytes_of(*type, *elements) : std::nullopt;
    check(bytes == given, "tensor '" + tensor.name + "' has " + std::to_string(given) +
                              " bytes, which its shape and type do not fill; pass exactly the bytes that they need");
    tensor.begin = begin;
    tensor.end = begin += given;
    add(tensor.name, {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}});
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length;
  for (std::uint64_t rest = text.size(), i = 0; i < 8; ++i, rest >>= 8) length += static_cast<char>(rest & 0xff);
  return length + text;
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
