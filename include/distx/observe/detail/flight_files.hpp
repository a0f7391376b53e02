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

// The two files of a rank's flight record: JSON, and the pickle that PyTorch's flight recorder tools read.
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
    }
    add("type", distx::name_of(call.type));
    add("send_count", call.send_count);
    add("receive_count", call.receive_count);
    add("state", name_of(entry.progress));
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

/// Builds the pickle of a rank, in protocol 2. It contains the groups whose members are known.
class FlightPickle {
 public:
  [[nodiscard]] static std::string of(const FlightDump& dump, std::int64_t epoch) {
    FlightPickle pickle;
    pickle.add(dump, epoch);
    return pickle.bytes_;
  }

 private:
  // Opcodes of the format.
  static constexpr char none = 'N', mark = '(', empty_dict = '}', set_items = 'u', empty_list = ']', appends = 'e',
                        tuple = 't', stop = '.';

  void op(char code) { bytes_ += code; }
  void little_endian(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void text(std::string_view value) {
    std::string valid = json_string(value);  // replaces what is not UTF-8, and escapes control characters
    valid = valid.substr(1, valid.size() - 2);
    op('X');
    little_endian(valid.size(), 4);
    bytes_ += valid;
  }
  void number(std::int64_t value) {
    op('\x8a');
    op(8);
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }
  void begin_dict() { op(empty_dict), op(mark); }
  void end_dict() { op(set_items); }
  void begin_list() { op(empty_list), op(mark); }
  void end_list() { op(appends); }
  void item(const char* key, std::string_view value) { text(key), text(value); }
  void item(const char* key, std::int64_t value) { text(key), number(value); }
  void flag(const char* key, bool value) { text(key), boolean(value); }
  void time(const char* key, std::int64_t value, std::int64_t epoch) {
    text(key);
    if (value == 0)
      op(none);
    else
      number(epoch + value);
  }
  void sizes(const char* key, std::uint64_t count) {
    text(key);
    begin_list(), begin_list();
    number(static_cast<std::int64_t>(count));
    end_list(), end_list();
  }
  void type(const char* key, ElementType value) {
    text(key);
    begin_list();
    text(distx::name_of(value));
    end_list();
  }

  void add(const FlightDump& dump, std::int64_t epoch) {
    op('\x80');
    op(2);
    begin_dict();
    item("version", "2.10");
    text("pg_config");
    begin_dict();
    for (const FlightGroup& group : dump.groups)
      if (!group.members.empty()) config(group);
    end_dict();
    text("pg_status");
    begin_dict(), end_dict();
    text("entries");
    begin_list();
    for (const FlightEntry& entry : dump.entries) {
      const FlightGroup* const group = group_of(dump, entry.call.group);
      if (group == nullptr || group->members.empty()) continue;
      const std::string name = entry.call.operation;
      if (name == "send_receive") {
        add(entry, *group, "send", epoch);
        add(entry, *group, "receive", epoch);
      } else {
        add(entry, *group, name, epoch);
      }
    }
    end_list();
    end_dict();
    op(stop);
  }
  void config(const FlightGroup& group) {
    text(group.name);
    begin_dict();
    item("name", group.name);
    item("desc", group.backend);
    item("ranks", list_of(group.members));
    end_dict();
  }
  void add(const FlightEntry& entry, const FlightGroup& group, const std::string& name, std::int64_t epoch) {
    const FlightCall& call = entry.call;
    const std::int64_t id = entries_++;
    begin_dict();
    item("record_id", id);
    item("pg_id", std::int64_t{0});
    text("process_group");
    op(mark);
    text(group.name);
    text(group.backend);
    op(tuple);
    item("collective_seq_id", call.message ? 0 : static_cast<std::int64_t>(call.in_group));
    item("p2p_seq_id", call.message ? ++messages_ : 0);
    item("op_id", id);
    flag("is_p2p", call.message);
    item("profiling_name", "nccl:" + torch_name(call, group, name));  // the only library that the reader accepts
    item("time_created_ns", epoch + entry.not_before);
    sizes("input_sizes", name == "receive" ? call.receive_count : call.send_count);
    sizes("output_sizes", name == "send" || name == "reduce" ? call.send_count : call.receive_count);
    type("input_dtypes", call.type);
    type("output_dtypes", call.type);
    item("state", entry.progress == FlightProgress::enqueued ? "scheduled" : name_of(entry.progress));
    time("time_discovered_started_ns", entry.started, epoch);
    time("time_discovered_completed_ns", entry.completed, epoch);
    flag("retired", entry.progress == FlightProgress::completed);
    item("timeout_ms", std::int64_t{0});
    text("frames");
    begin_list();
    begin_dict();
    item("name", call.location.function_name());
    item("filename", call.location.file_name());
    item("line", static_cast<std::int64_t>(call.location.line()));
    end_dict();
    end_list();
    end_dict();
  }
  /// Returns the name that PyTorch's tools give to an operation. They number the members in the order of the world.
  static std::string torch_name(const FlightCall& call, const FlightGroup& group, const std::string& name) {
    const auto number = [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      int before = 0;
      for (const int other : group.members)
        if (at < group.members.size() && other < group.members[at]) ++before;
      return std::to_string(before);
    };
    if (name == "send") return "send " + number(call.rank) + "->" + number(call.root);
    if (name == "receive") return "recv " + number(call.rank) + "<-" + number(call.from);
    if (name == "allocate") return "barrier";
    if (call.uneven && (name == "all_gather" || name == "reduce_scatter")) return name + "_v";
    return name;
  }

  std::string bytes_;
  std::int64_t entries_ = 0, messages_ = 0;
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

/// Writes the files of all ranks of this process to a folder.
inline void write_flight_files(const std::string& folder) {
  const std::lock_guard lock(FlightRegistry::get().writing());
  const std::int64_t epoch = clock_epoch();
  for (const FlightDump& dump : FlightRegistry::get().dumps()) {
    const std::string rank = std::to_string(dump.rank);
    write_whole(std::string(folder).append("/flight_rank_").append(rank).append(".json"), FlightJson::of(dump, epoch));
    write_whole(std::string(folder).append("/nccl_trace_rank_").append(rank), FlightPickle::of(dump, epoch));
  }
}

}  // namespace distx::inline DISTX_ABI::detail
