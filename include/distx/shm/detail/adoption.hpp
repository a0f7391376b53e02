// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdio>

#include "distx/shm/detail/allocation.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// Returns why pages of this process cannot be replaced by shared pages; empty if they can.
inline std::string objection_to(std::uintptr_t begin, std::uintptr_t end) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/smaps", "re"), &std::fclose);
  if (file == nullptr) return std::string("/proc/self/smaps cannot be read: ") + std::strerror(errno);
  std::array<char, 8192> line{};
  std::uintptr_t known = begin;  // pages before this one are in order
  bool inside = false;
  while (std::fgets(line.data(), line.size(), file.get()) != nullptr) {
    unsigned long from = 0, to = 0, inode = 0;
    char permitted[5] = {};
    int name = 0;
    if (std::sscanf(line.data(), "%lx-%lx %4s %*s %*s %lu %n", &from, &to, permitted, &inode, &name) == 4) {
      if (from >= end) break;
      inside = to > begin;
      if (!inside) continue;
      if (from > known) return "not all of it is mapped";
      known = to;
      const std::string_view path(line.data() + name);
      if (permitted[3] == 's')
        return "its pages are shared already, as memory that is adopted or allocated by a communicator";
      if (inode != 0) return "its pages belong to a file, " + std::string(path.substr(0, path.find('\n')));
      if (path.starts_with("[stack")) return "it is on the stack";
      if (std::string_view(permitted) != "rw-p") return "its pages are not readable and writable";
    } else if (const std::string_view flags(line.data()); inside && flags.starts_with("VmFlags:")) {
      const auto has = [&](std::string_view flag) { return flags.find(flag) != std::string_view::npos; };
      if (has(" lo")) return "its pages are locked";
      if (has(" io") || has(" pf")) return "its pages belong to a device";
      if (has(" dc")) return "its pages are excluded from fork, as memory that is registered with a device";
    }
  }
  return known < end ? "not all of it is mapped" : "";
}

/// Makes whole pages of the caller a rank's part of a segment, with their contents; undoes that unless `owner` is
/// called.
class SegmentAdoption final : public Allocation {
 public:
  SegmentAdoption(std::shared_ptr<SegmentRegion> region, const RankOf& self, Span<std::byte> memory)
      : Allocation(std::move(region), self, "adopt", 0), memory_(memory) {}
  ~SegmentAdoption() override {
    if (replaced_) static_cast<void>(make_private(memory_.data(), memory_.size()));
  }

  void check(const Request& mine, const std::vector<Request>& all) override {
    const auto begin = static_cast<std::uintptr_t>(mine.adopted);
    if (begin % page_bytes != 0 || mine.count % page_bytes != 0 || mine.count == 0)
      throw InvalidArgument("the memory has " + std::to_string(mine.count) + " bytes and begins " +
                                std::to_string(begin % page_bytes) + " bytes into a page, and must consist of " +
                                "whole pages: allocate it by std::aligned_alloc(4096, n * 4096)",
                            context());
    Allocation::check(mine, all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const bool is_other = rank != static_cast<std::size_t>(self_.rank);
      const bool overlaps = all[rank].adopted < begin + mine.count && begin < all[rank].adopted + all[rank].count;
      if (is_other && overlaps && region_->is_in_process(static_cast<int>(rank)))
        throw InvalidArgument("the memory overlaps that of rank " + std::to_string(rank) + " in the same process",
                              context());
    }
    if (const std::string objection = objection_to(begin, begin + mine.count); !objection.empty())
      throw InvalidArgument("the memory cannot be adopted: " + objection, context());
  }
  void open(const RegionToken& token) override {
    segment_ = SharedSegment::find(name_of(token));
    auto mapping = segment_->map_again(offset(), bytes_);
    auto* const shared = static_cast<std::byte*>(mapping.native_handle().address);
    SharedSegment::populate(shared, bytes_, context());
    std::memcpy(shared, memory_.data(), bytes_);
    if (!replace_pages(memory_.data(), mapping))
      throw MemoryError("cannot map shared memory of " + std::to_string(bytes_) + " bytes: " + std::strerror(errno),
                        context(), errno);
    own_ = memory_.data();
    replaced_ = true;
  }
  [[nodiscard]] std::shared_ptr<void> owner() override {
    auto owner = Allocation::owner(true);
    replaced_ = false;
    return owner;
  }

 private:
  Span<std::byte> memory_;
  bool replaced_ = false;
};

inline std::unique_ptr<RegionAllocation> SegmentRegion::new_adoption(const RankOf& self, Span<std::byte> memory) {
  return std::make_unique<SegmentAdoption>(std::static_pointer_cast<SegmentRegion>(shared_from_this()), self, memory);
}

}  // namespace distx::inline DISTX_ABI::detail::shm
