// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/memory.hpp"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "standin/device.hpp"
#include "standin/guard.hpp"
#include "standin/standin.hpp"
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace standin {

namespace {

using Address = std::uintptr_t;

constexpr std::size_t page = 4096;
constexpr std::size_t range = std::size_t{64} << 30;  // addresses of one GPU; none is used twice
constexpr int canary = 0xA5;

constexpr std::size_t pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }

struct Allocation {
  std::size_t bytes = 0;
  int device = -1;
  Pool* pool = nullptr;
  bool registered = false;  // memory of the host that somebody else frees
};

struct Memory {
  std::mutex mutex;
  std::array<Address, most_devices> base{};
  std::array<std::size_t, most_devices> given{};
  std::array<std::size_t, most_devices> used{};
  std::map<Address, Allocation> device;
  std::map<Address, Allocation> host;
  std::size_t total = [] {
    const char* text = std::getenv("DISTX_STANDIN_MEMORY");
    return text == nullptr ? std::size_t{4} << 30 : static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
  }();
  std::atomic<std::size_t> overruns{0};
};

Memory& all() {
  static auto* memory = new Memory;
  return *memory;
}

thread_local std::size_t most_page_locked = std::size_t{1} << 40;

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }
void* at(Address address) { return reinterpret_cast<void*>(address); }

Address base_of(Memory& memory, int device) {
  Address& base = memory.base[static_cast<std::size_t>(device)];
  if (base == 0) {
    void* const reserved = mmap(nullptr, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) throw std::bad_alloc();
    base = address_of(reserved);
  }
  return base;
}

/// Returns the allocation that has an address, or ends at it.
const std::pair<const Address, Allocation>* found(const std::map<Address, Allocation>& allocations, Address address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  --after;
  return address - after->first < after->second.bytes ? &*after : nullptr;
}

/// Where the pages of an allocation begin, and where they end.
std::pair<Address, Address> pages_of(Address begin, std::size_t bytes) {
  return {begin / page * page, pages(begin + bytes)};
}

}  // namespace

void memory(std::size_t bytes) { all().total = bytes; }
void page_locked(std::size_t bytes) { most_page_locked = bytes; }
std::size_t overruns() { return all().overruns; }

Place place(const void* address) {
  Memory& memory = all();
  const std::lock_guard lock(memory.mutex);
  const Address where = address_of(address);
  for (std::size_t device = 0; device < memory.base.size(); ++device) {
    const Address base = memory.base[device];
    if (base == 0 || where < base || where >= base + range) continue;
    Place result{Kind::nothing, static_cast<int>(device), nullptr, 0, nullptr};
    if (const auto* allocation = found(memory.device, where)) {
      result.kind = Kind::device;
      result.begin = at(allocation->first);
      result.left = allocation->first + allocation->second.bytes - where;
      result.pool = allocation->second.pool;
    }
    return result;
  }
  if (const auto* allocation = found(memory.host, where))
    return {Kind::pinned, allocation->second.device, at(allocation->first),
            allocation->first + allocation->second.bytes - where, nullptr};
  return {};
}

void* allocate(int device, std::size_t bytes, std::size_t alignment, Pool* pool) {
  Memory& memory = all();
  const std::lock_guard lock(memory.mutex);
  const auto index = static_cast<std::size_t>(device);
  if (bytes > memory.total || memory.used[index] > memory.total - bytes) return nullptr;
  const std::size_t mapped = pages(bytes);
  const Address first = base_of(memory, device) + memory.given[index];
  if (memory.given[index] + mapped + page > range) return nullptr;
  void* const got =
      mmap(at(first), mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  if (guard_key() >= 0) static_cast<void>(pkey_mprotect(got, mapped, PROT_READ | PROT_WRITE, guard_key()));
  const Unguarded open;
  memory.given[index] += mapped + page;
  memory.used[index] += bytes;
  // It ends where its last page ends, as far as its alignment allows: writes beyond it hit an unmapped page.
  const Address begin = (first + mapped - bytes) / alignment * alignment;
  std::memset(at(first), canary, mapped);
  std::memset(at(begin), poison_of_new, bytes);
  ASAN_POISON_MEMORY_REGION(at(first), begin - first);
  ASAN_POISON_MEMORY_REGION(at(begin + bytes), first + mapped - begin - bytes);
  memory.device[begin] = {bytes, device, pool, false};
  return at(begin);
}

std::size_t forget(void* begin) {
  Memory& memory = all();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.device.find(address_of(begin));
  const std::size_t bytes = found->second.bytes;
  memory.used[static_cast<std::size_t>(found->second.device)] -= bytes;
  memory.device.erase(found);
  return bytes;
}

void release(void* begin, std::size_t bytes) {
  const auto [first, end] = pages_of(address_of(begin), bytes);
  const Unguarded open;
  ASAN_UNPOISON_MEMORY_REGION(at(first), end - first);
  for (Address address = address_of(begin) + bytes; address < end; ++address) {
    if (*static_cast<unsigned char*>(at(address)) == canary) continue;
    ++all().overruns;
    break;
  }
  static_cast<void>(
      mmap(at(first), end - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
}

std::size_t total_bytes() { return all().total; }

std::size_t free_bytes(int device) {
  Memory& memory = all();
  const std::lock_guard lock(memory.mutex);
  const std::size_t used = memory.used[static_cast<std::size_t>(device)];
  return used < memory.total ? memory.total - used : 0;
}

void* allocate_host(std::size_t bytes) {
  if (bytes > most_page_locked) return nullptr;
  void* const begin = std::aligned_alloc(page, pages(bytes));
  if (begin == nullptr) return nullptr;
  std::memset(begin, poison_of_new, pages(bytes));
  const std::lock_guard lock(all().mutex);
  all().host[address_of(begin)] = {bytes, 0, nullptr, false};
  return begin;
}

bool free_host(void* begin) {
  {
    const std::lock_guard lock(all().mutex);
    const auto found = all().host.find(address_of(begin));
    if (found == all().host.end() || found->second.registered) return false;
    all().host.erase(found);
  }
  std::free(begin);
  return true;
}

bool register_host(void* begin, std::size_t bytes) {
  const std::lock_guard lock(all().mutex);
  if (found(all().host, address_of(begin)) != nullptr) return false;
  return all().host.emplace(address_of(begin), Allocation{bytes, 0, nullptr, true}).second;
}

bool unregister_host(void* begin) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().host.find(address_of(begin));
  if (found == all().host.end() || !found->second.registered) return false;
  all().host.erase(found);
  return true;
}

std::size_t live_device_allocations() {
  const std::lock_guard lock(all().mutex);
  return all().device.size();
}
std::size_t live_host_allocations() {
  const std::lock_guard lock(all().mutex);
  return all().host.size();
}

}  // namespace standin
