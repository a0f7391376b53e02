// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "distx/checkpoint/detail/checksum.hpp"
#include "distx/checkpoint/detail/file.hpp"
#include "distx/checkpoint/detail/rectangles.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// The name of the file whose presence makes a folder a checkpoint.
inline constexpr const char* manifest_name = "checkpoint.json";

/// The names of the optimizer's arrays begin with it.
inline constexpr std::string_view optimizer_prefix = "optim.state.";

/// A file of a checkpoint, as its manifest describes it.
struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t header_checksum = 0;  ///< of the bytes before the data, which contain the tensors' checksums
};

/// The description of a checkpoint: everything but its tensors' values.
struct Manifest {
  struct ManifestTensor {
    std::string type;
    Shape shape;
  };
  std::uint64_t step = 0;
  int ranks = 0;
  int stage = 0;
  std::map<std::string, std::string> notes;
  std::vector<std::map<std::string, std::string>> rank_notes;  // empty if no rank has any
  distx::detail::TrainingCounters counters;
  std::map<std::string, ManifestTensor> tensors;
  std::vector<ManifestFile> files;
  std::string saved_by{};  // the process and the time; empty in older ones
};

/// Parses JSON; calls refuse(), which throws, as soon as it is nested in more than four levels. If not
/// `throws`, invalid JSON gives a discarded value instead of an exception.
template <class F>
[[nodiscard]] nlohmann::json parse_shallow(std::string_view text, const F& refuse, bool throws = true) {
  const auto check = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > 4) refuse();
    return true;
  };
  return nlohmann::json::parse(text, check, throws);
}
/// Returns a JSON value that is a whole number from 0 on; of larger ones than T has, the largest T.
/// @throws nlohmann::json::exception for any other value
template <class T>
[[nodiscard]] T whole_number(const nlohmann::json& json) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  return static_cast<T>(std::min<std::uint64_t>(json.get_ref<const nlohmann::json::number_unsigned_t&>(), most));
}
/// @throws nlohmann::json::exception unless it is an array of whole numbers
[[nodiscard]] inline Shape shape_of(const nlohmann::json& json) {
  Shape shape;
  for (const auto& extent : json.get_ref<const nlohmann::json::array_t&>())
    shape.push_back(whole_number<std::uint64_t>(extent));
  return shape;
}

[[nodiscard]] inline nlohmann::json json_of(const std::vector<ManifestFile>& files) {
  auto list = nlohmann::json::array();
  for (const auto& file : files)
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"header_crc32", file.header_checksum}});
  return list;
}
/// @throws nlohmann::json::exception
inline void add_files(std::vector<ManifestFile>& files, const nlohmann::json& list) {
  for (const auto& file : list.get_ref<const nlohmann::json::array_t&>())
    files.push_back({file.at("name").get<std::string>(), whole_number<std::uint64_t>(file.at("bytes")),
                     whole_number<std::uint32_t>(file.at("header_crc32"))});
}

[[nodiscard]] inline std::uint32_t checksum(const std::string& text) {
  return checksum(std::as_bytes(std::span(text)));
}

/// Returns the content of a manifest's file.
/// @throws nlohmann::json::exception for texts that are not UTF-8
[[nodiscard]] inline std::string to_text(const Manifest& manifest) {
  const auto& counters = manifest.counters;
  nlohmann::json updates = nlohmann::json::object();
  for (const auto& [name, count] : counters.updates) updates[name] = count;
  nlohmann::json tensors = nlohmann::json::object();
  for (const auto& [name, tensor] : manifest.tensors) tensors[name] = {{"dtype", tensor.type}, {"shape", tensor.shape}};
  nlohmann::json json = {{"format", "distx checkpoint"},
                         {"version", 1},
                         {"step", manifest.step},
                         {"ranks", manifest.ranks},
                         {"stage", manifest.stage},
                         {"notes", manifest.notes},
                         {"rank_notes", manifest.rank_notes},
                         {"updates", updates},
                         {"loss_scale", counters.loss_scale},
                         {"finite_steps", counters.finite_steps},
                         {"skipped_steps", counters.skipped_steps},
                         {"tensors", tensors},
                         {"files", json_of(manifest.files)},
                         {"saved_by", manifest.saved_by}};
  json["crc32"] = checksum(json.dump());
  return json.dump(1);
}

/// Whether a file of this name can only be in the manifest's own folder.
[[nodiscard]] inline bool is_plain_name(const std::string& name) noexcept {
  constexpr std::string_view suffix = ".safetensors";
  return name.size() > suffix.size() && name.ends_with(suffix) && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

/// Reads and validates the content of a manifest's file.
/// @param path  of the file, for messages
/// @throws CheckpointError
[[nodiscard]] inline Manifest parse_manifest(std::string_view text, const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw CheckpointError("'" + path + "' " + what + "; use an older checkpoint", {.operation = "checkpoint"});
  };
  Manifest manifest;
  try {
    auto json =
        parse_shallow(text, [&] { fail("is not the manifest of a distx checkpoint: it is nested too deeply"); });
    if (json.at("format") != "distx checkpoint") fail("is not the manifest of a distx checkpoint");
    if (json.at("version") != 1) fail("has version " + json.at("version").dump() + ", and this distx reads version 1");
    const auto expected = whole_number<std::uint64_t>(json.at("crc32"));
    json.erase("crc32");
    if (checksum(json.dump()) != expected) fail("is damaged: its content does not have its checksum");
    manifest.step = whole_number<std::uint64_t>(json.at("step"));
    manifest.ranks = whole_number<int>(json.at("ranks"));
    manifest.stage = whole_number<int>(json.at("stage"));
    json.at("notes").get_to(manifest.notes);
    if (json.contains("rank_notes")) json.at("rank_notes").get_to(manifest.rank_notes);  // older ones have none
    if (json.contains("saved_by")) json.at("saved_by").get_to(manifest.saved_by);
    json.at("loss_scale").get_to(manifest.counters.loss_scale);
    manifest.counters.finite_steps = whole_number<std::uint64_t>(json.at("finite_steps"));
    manifest.counters.skipped_steps = whole_number<std::uint64_t>(json.at("skipped_steps"));
    for (const auto& [name, count] : json.at("updates").get_ref<const nlohmann::json::object_t&>())
      manifest.counters.updates.emplace_back(name, whole_number<std::uint64_t>(count));
    for (const auto& [name, tensor] : json.at("tensors").get_ref<const nlohmann::json::object_t&>())
      manifest.tensors[name] = {tensor.at("dtype").get<std::string>(), shape_of(tensor.at("shape"))};
    add_files(manifest.files, json.at("files"));
  } catch (const nlohmann::json::exception&) {
    fail("is damaged: it is not the JSON of a manifest");
  }
  for (const auto& each : manifest.files)
    if (!is_plain_name(each.name)) fail("names the file '" + each.name + "', which is not one of its folder");
  return manifest;
}

/// Reads and validates the manifest of a checkpoint.
/// @throws CheckpointError
[[nodiscard]] inline Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / manifest_name;
  if (!is_present(path))
    throw CheckpointError("'" + folder.string() + "' holds no complete checkpoint: it has no " + manifest_name +
                              "; pass the folder that latest(directory) returns",
                          {.operation = "checkpoint"});
  const MappedFile file(path);
  return parse_manifest({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string());
}

/// Returns what a folder lacks of the files that its manifest describes, to follow the name of the folder in a message;
/// empty if each is there with its length.
/// @throws CheckpointError without the permission to find out
[[nodiscard]] inline std::string lacks(const std::filesystem::path& folder, const Manifest& manifest) {
  for (const auto& file : manifest.files) {
    const auto path = folder / file.name;
    struct ::stat status;
    if (::stat(path.c_str(), &status) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) fail("open", path, errno);
      return "lacks the file " + file.name;
    }
    if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != file.bytes)
      return "has " + std::to_string(status.st_size) + " bytes of the file " + file.name + " instead of " +
             std::to_string(file.bytes);
  }
  return {};
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
