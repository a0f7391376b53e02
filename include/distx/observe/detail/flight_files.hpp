// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <cstring>

#include "distx/core/error.hpp"
#include "distx/observe/detail/flight_registry.hpp"
#include "distx/observe/detail/json_string.hpp"

// The file of a rank's flight record.
namespace distx::inline DISTX_ABI::detail {

[[nodiscard]] inline const char* name_of(FlightProgress progress) noexcept {
  constexpr const char* names[] = {"enqueued", "started", "completed"};
  return names[static_cast<std::size_t>(progress)];
}
/// Returns the name of a recorded op; see FlightKinds.
[[nodiscard]] inline const char* flight_op_name(std::uint8_t op) noexcept {
  constexpr const char* names[] = {"", "sum", "product", "min", "max", "average", "user"};
  return op < sizeof names / sizeof *names ? names[op] : "user";
}
[[nodiscard]] inline const FlightGroup* group_of(const FlightDump& dump, std::uint64_t id) noexcept {
  for (const FlightGroup& group : dump.groups)
    if (group.id == id) return &group;
  return nullptr;
}

/// Returns what is added to times of the steady clock to obtain nanoseconds since 1970.
[[nodiscard]] inline std::int64_t clock_epoch() noexcept {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() - flight_clock();
}

/// Returns `[0, 1, 2]`.
[[nodiscard]] inline std::string list_of(const std::vector<int>& numbers) {
  std::string text = "[";
  for (const int number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + "]";
}

/// Builds the JSON file of a rank.
class FlightJson {
 public:
  [[nodiscard]] static std::string of(const FlightDump& dump, std::int64_t epoch) {
    FlightJson json(epoch);
    json.text_ = "{\"format\":\"distx flight record 1\",\n\"rank\":" + std::to_string(dump.rank) +
                 ",\n\"size\":" + std::to_string(dump.size) +
                 ",\n\"written_ns\":" + std::to_string(epoch + flight_clock()) +
                 ",\n\"ended\":" + (dump.ended ? "true" : "false") +
                 ",\n\"error\":" + (dump.error.empty() ? "null" : json_string(dump.error)) + ",\n\"groups\":[";
    for (const FlightGroup& group : dump.groups) json.add(group);
    json.text_ += "],\n\"calls\":[";
    for (const FlightEntry& entry : dump.entries) json.add(entry, group_of(dump, entry.call.group));
    json.text_ += "]}\n";
    return json.text_;
  }

 private:
  explicit FlightJson(std::int64_t epoch) : epoch_(epoch) {}

  void begin_object() { text_ += text_.back() == '[' ? "\n{" : ",\n{"; }
  void key(const char* name) {
    text_ += text_.back() == '{' ? "\"" : ",\"";
    text_.append(name).append("\":");
  }
  void add(const char* name, std::string_view text) {
    key(name);
    text_ += json_string(text);
  }
  void add(const char* name, const char* text) { add(name, std::string_view(text)); }
  template <std::integral Number>
  void add(const char* name, Number number) {
    key(name);
    text_ += std::to_string(number);
  }
  void add_known(const char* name, std::int64_t number) {
    if (number >= 0) add(name, number);
  }
  void add_time(const char* name, std::int64_t time) {
    if (time != 0) add(name, epoch_ + time);
  }
  void add(const FlightGroup& group) {
    begin_object();
    add("name", group.name);
    add("rank", group.rank);
    add("size", group.size);
    add("backend", group.backend);
    if (!group.members.empty()) {
      key("members");
      text_ += list_of(group.members);
    }
    text_ += '}';
  }
  void add(const FlightEntry& entry, const FlightGroup* group) {
    const FlightCall& call = entry.call;
    begin_object();
    add("group", group != nullptr ? std::string_view(group->name) : std::string_view("unknown"));
    add("rank", call.rank);
    add("size", call.size);
    add("queue", call.message ? "messages" : call.asynchronous ? "asynchronous" : "blocking");
    add("call", call.ordinal);
    add("operation", call.operation);
    if (call.op != 0) add("op", flight_op_name(call.op));
    if (call.message) {
      add_known("to", call.root);
      add_known("from", call.from);
      add("tag", call.tag);
    } else {
      add_known("root", call.root);
      add("in_group", call.in_group);
    }
    if (call.uneven) add("uneven", 1);
    add("type", distx::name_of(call.type));
    add("send_count", call.send_count);
    add("receive_count", call.receive_count);
    add("state", name_of(entry.progress));
    add_time("created_ns", entry.not_before);
    add_time("enqueued_ns", entry.enqueued);
    add_time("started_ns", entry.started);
    add_time("completed_ns", entry.completed);
    add("file", call.location.file_name());
    add("line", call.location.line());
    add("function", call.location.function_name());
    add_known("step", entry.context.step);
    if (entry.context.phase[0] != '\0') add("phase", entry.context.phase);
    add_known("bucket", entry.context.bucket);
    if (entry.context.parameter[0] != '\0') add("parameter", entry.context.parameter);
    text_ += '}';
  }

  std::int64_t epoch_;
  std::string text_;
};

/// Writes a file under another name first, so that a reader never sees a part of it.
inline void write_whole(const std::string& path, const std::string& contents) {
  const std::string temporary = path + ".part";
  std::FILE* const file = std::fopen(temporary.c_str(), "wb");
  bool written = file != nullptr;
  if (written) {
    written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
    written = std::fclose(file) == 0 && written;
    written = written && std::rename(temporary.c_str(), path.c_str()) == 0;
  }
  if (written) return;
  const int code = errno;
  throw BackendError(
      "cannot write '" + path + "': " + std::strerror(code) + "; name an existing folder with free space",
      {.operation = "flight::write_record"}, code);
}

/// Writes the file of each rank of this process to a folder.
inline void write_flight_files(const std::string& folder) {
  const std::lock_guard lock(FlightRegistry::get().writing());
  const std::int64_t epoch = clock_epoch();
  for (const FlightDump& dump : FlightRegistry::get().dumps()) {
    const std::string rank = std::to_string(dump.rank);
    write_whole(std::string(folder).append("/flight_rank_").append(rank).append(".json"), FlightJson::of(dump, epoch));
  }
}

}  // namespace distx::inline DISTX_ABI::detail
