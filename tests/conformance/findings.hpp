// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <vector>

// Collects the failures of all ranks and reports them on the thread that runs the test case, because doctest's subcases
// and messages belong to one thread.
namespace conformance {

/// The findings of all ranks in this process; thread-safe.
class Report {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (++count_ <= 20) text_ += "\n  " + line;
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::string text() const { return std::to_string(count_) + " findings" + text_; }

 private:
  std::mutex mutex_;
  std::size_t count_ = 0;
  std::string text_;
};

/// One rank's interface to the report.
class Findings {
 public:
  Findings(Report& report, int rank, int size) : report_(report), rank_(rank), size_(size) {}

  void expect(bool holds, const std::string& what) {
    if (!holds) report_.add("rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + what);
  }
  /// Checks that the bytes are equal; reports the index of the first element that differs.
  void same(std::span<const std::byte> got, std::span<const std::byte> expected, std::size_t element_bytes,
            const std::string& what) {
    if (got.size() != expected.size()) return expect(false, what + ": sizes differ");
    if (got.empty() || std::memcmp(got.data(), expected.data(), got.size()) == 0) return;
    std::size_t at = 0;
    while (got[at] == expected[at]) ++at;
    expect(false, what + ": element " + std::to_string(at / element_bytes) + " is wrong");
  }
  template <class T>
  void same(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what) {
    same(std::as_bytes(std::span(got)), std::as_bytes(std::span(expected)), sizeof(T), what);
  }

 private:
  Report& report_;
  int rank_;
  int size_;
};

}  // namespace conformance
