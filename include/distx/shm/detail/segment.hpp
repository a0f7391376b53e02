// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/stat.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "distx/comm/shared_memory/shared_region.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/error.hpp"
#include "distx/posix/mapping.hpp"
#include "distx/posix/process.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

using namespace shared_memory;
using posix::Descriptor;
using posix::Mapped;
using posix::Mapping;

/// Returns a number that identifies the host. @see host_id
[[nodiscard]] inline std::uint64_t host_number() noexcept {
  static const std::uint64_t number = [] {
    const auto id = posix::host_id();
    return fnv1a(std::as_bytes(std::span(id)));
  }();
  return number;
}

/// Identifies a segment by an open file of the process that made it, on a host.
struct SegmentName {
  std::int64_t process = 0;
  std::int32_t file = -1;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::uint64_t host = 0;
};

/// @name Conversion between a segment's name and a region's token
/// @{
[[nodiscard]] inline RegionToken token_of(const SegmentName& name) noexcept {
  return {{static_cast<std::uint64_t>(name.process), static_cast<std::uint64_t>(name.file) + 1, name.device, name.inode,
           name.bytes, name.host}};
}
[[nodiscard]] inline SegmentName name_of(const RegionToken& token) noexcept {
  return {static_cast<std::int64_t>(token.words[0]),
          static_cast<std::int32_t>(token.words[1]) - 1,
          token.words[2],
          token.words[3],
          token.words[4],
          token.words[5]};
}
/// @}

inline constexpr std::size_t page_bytes = 4096;

/// Returns the pages that hold any of the bytes.
inline Mapped pages_of(std::byte* begin, std::size_t bytes) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page_bytes * page_bytes;
  const auto end = (reinterpret_cast<std::uintptr_t>(begin) + bytes + page_bytes - 1) / page_bytes * page_bytes;
  return {reinterpret_cast<void*>(first), end - first};
}

/// Puts a mapping in the place of the pages at `place`; returns false if the system refuses. It checks the limit on
/// mappings before it removes the pages, which remain then.
[[nodiscard]] inline bool replace_pages(void* place, Mapping& mapping) noexcept {
  const Mapped from = mapping.native_handle();
  if (::mremap(from.address, from.bytes, from.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) return false;
  static_cast<void>(mapping.release());
  return true;
}
/// Replaces the pages that hold any of the bytes by private copies at the same addresses; returns false, and changes
/// nothing, if there is not enough memory. @pre no thread of this process writes to them
[[nodiscard]] inline bool make_private(std::byte* begin, std::size_t bytes) noexcept {
  const auto pages = pages_of(begin, bytes);
  void* const copy = ::mmap(nullptr, pages.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  auto mapping = Mapping::from_native_handle({copy, pages.bytes});
  std::memcpy(copy, pages.address, pages.bytes);
  return replace_pages(pages.address, mapping);
}

/// Memory that several processes map, initially zero.
///
/// An anonymous file: it has no name in /dev/shm, and the system frees it with the last process that maps it, however
/// that process ends. Ranks of one process share one mapping.
class SharedSegment {
 public:
  struct Made;

  /// Makes a segment. @throws MemoryError
  [[nodiscard]] static Made make(std::size_t bytes);
  /// Maps a segment by its name. @pre its maker keeps the file open
  /// @throws MemoryError
  [[nodiscard]] static std::shared_ptr<SharedSegment> find(const SegmentName& name);

  ~SharedSegment() {
    Known& known = known_segments();
    const std::lock_guard lock(known.mutex);
    const auto entry = known.segments.find(key_);
    if (entry != known.segments.end() && entry->second.expired()) known.segments.erase(entry);
  }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(mapping_.native_handle().address); }
  [[nodiscard]] std::size_t size() const noexcept { return mapping_.native_handle().bytes; }

  /// Maps the segment once more: pages of `own` for writing, which are populated, the others for reading. Ranks of one
  /// process have separate mappings. @throws MemoryError
  [[nodiscard]] Mapping map_for(const std::vector<ByteRange>& own, const ErrorContext& context) const {
    auto mapping = map_again(0, size());
    void* const address = mapping.native_handle().address;
    const auto protect = [&](std::byte* begin, std::size_t bytes, int protection) {
      const auto pages = pages_of(begin, bytes);
      if (::mprotect(pages.address, pages.bytes, protection) != 0) fail("cannot protect shared memory", bytes);
    };
    auto* const memory = static_cast<std::byte*>(address);
    protect(memory, size(), PROT_READ);
    for (const ByteRange& range : own) {
      if (range.bytes == 0) continue;
      protect(memory + range.offset, range.bytes, PROT_READ | PROT_WRITE);
      populate(memory + range.offset, range.bytes, context);
    }
    return mapping;
  }
  /// Maps whole pages of the segment once more, for reading and writing. @throws MemoryError
  [[nodiscard]] Mapping map_again(std::size_t offset, std::size_t bytes) const {
    // A size of 0 makes mremap map the pages again, and leave the first mapping.
    void* const address = ::mremap(data() + offset, 0, bytes, MREMAP_MAYMOVE);
    if (address == MAP_FAILED) fail("cannot map shared memory", bytes);
    return Mapping::from_native_handle({address, bytes});
  }
  /// Populates pages now, if supported: a lack of memory is an error here, but would be a signal later.
  /// @throws MemoryError
  static void populate(std::byte* begin, std::size_t bytes, const ErrorContext& context) {
    constexpr int populate_write = 23;  // since Linux 5.14; older systems return an error
    const auto pages = pages_of(begin, bytes);
    if (bytes != 0 && ::madvise(pages.address, pages.bytes, populate_write) != 0 && errno != EINVAL)
      throw MemoryError(
          "cannot allocate shared memory of " + std::to_string(bytes) + " bytes on each rank: " + std::strerror(errno),
          context, errno);
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct Known {
    std::mutex mutex;
    std::map<Key, std::weak_ptr<SharedSegment>> segments;
  };

  SharedSegment(const Key& key, Mapping mapping) noexcept : key_(key), mapping_(std::move(mapping)) {}

  static Known& known_segments() {
    static Known& known = *new Known;  // never destroyed, because globals may hold segments
    return known;
  }
  [[noreturn]] static void fail(const std::string& what, std::size_t bytes) {
    const int code = errno;
    throw MemoryError(what + " of " + std::to_string(bytes) + " bytes: " + std::strerror(code), {}, code);
  }
  /// @pre the mutex is held
  static std::shared_ptr<SharedSegment> map(Known& known, const Descriptor& file, const Key& key, std::size_t bytes) {
    auto mapping = posix::map_file(file, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (!mapping) fail("cannot map shared memory", bytes);
    auto segment = std::shared_ptr<SharedSegment>(new SharedSegment(key, std::move(mapping)));
    known.segments[key] = segment;
    return segment;
  }
  static Key key_of(int file) {
    struct stat about {};
    if (::fstat(file, &about) != 0) return {};
    return {about.st_dev, about.st_ino};
  }

  Key key_;
  Mapping mapping_;
};

/// A new segment, and the file by which other processes find it; keep the file until all have mapped it.
struct SharedSegment::Made {
  std::shared_ptr<SharedSegment> segment;
  Descriptor file;
  SegmentName name;
};

inline SharedSegment::Made SharedSegment::make(std::size_t bytes) {
  Made made;
  made.file = Descriptor::from_native_handle(::memfd_create("distx", MFD_CLOEXEC));
  if (const int code = errno; !made.file && (code == EPERM || code == EACCES || code == ENOSYS))
    throw MemoryError(std::string("the system call memfd_create, which shared memory needs, is denied (") +
                          std::strerror(code) +
                          "), as by a container's seccomp profile; allow it, or use GlooCommunicator or "
                          "MpiCommunicator, or ThreadCommunicator for threads of one process",
                      {}, code);
  if (!made.file) fail("cannot allocate shared memory", bytes);
  const int file = made.file.native_handle();
  if (::fchmod(file, S_IRUSR | S_IWUSR) != 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0)
    fail("cannot allocate shared memory", bytes);
  const Key key = key_of(file);
  Known& known = known_segments();
  const std::lock_guard lock(known.mutex);
  made.segment = map(known, made.file, key, bytes);
  made.name = {::getpid(), file, key.first, key.second, bytes, host_number()};
  return made;
}

inline std::shared_ptr<SharedSegment> SharedSegment::find(const SegmentName& name) {
  if (name.host != host_number())
    throw MemoryError(
        "runs on another host than rank 0, and shared memory is for the ranks of one host; use MpiCommunicator");
  const Key key{name.device, name.inode};
  Known& known = known_segments();
  const std::lock_guard lock(known.mutex);
  if (const auto entry = known.segments.find(key); entry != known.segments.end())
    if (auto segment = entry->second.lock()) return segment;
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  const auto file = posix::open_file(path.c_str(), O_RDWR);
  if (!file) {
    const int code = errno;
    const std::string message = "cannot open the shared memory of process " + std::to_string(name.process) + " (" +
                                std::strerror(code) +
                                "): ranks that share memory need the same user, /proc and process namespace";
    const char state = posix::process_state(name.process).state;
    if (state == 0 || state == 'Z' || state == 'X') throw RankFailure(message + "; or it has exited", -1);
    throw MemoryError(message, {}, code);
  }
  if (key_of(file.native_handle()) != key)
    throw MemoryError("process " + std::to_string(name.process) +
                      " is a different one here: ranks that share memory need the same process namespace");
  return map(known, file, key, name.bytes);
}

}  // namespace distx::inline DISTX_ABI::detail::shm
