// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <utility>

#include "timing/pattern.hpp"

namespace timing {

/// Two pieces of memory of this rank, side by side with those of the other ranks; borrowed.
struct Memory {
  std::string name;  ///< `communicator`, `adopted` or `user`
  float* first = nullptr;
  float* second = nullptr;
};

/// Something that is timed: one library's collectives on one kind of memory.
class Subject {
 public:
  Subject(std::string backend, Memory memory) : backend_(std::move(backend)), memory_(std::move(memory)) {}
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  [[nodiscard]] const std::string& backend() const { return backend_; }
  [[nodiscard]] const Memory& memory() const { return memory_; }

  /// The same answer on every rank.
  [[nodiscard]] virtual bool can(const Case&) const { return true; }
  /// Where a call lies whose memory begins `offset` elements further on.
  [[nodiscard]] virtual Buffers at(const Case& c, std::size_t offset) const {
    return place(c, memory_.first + offset, memory_.second + offset);
  }
  virtual void prepare(const Case& c, const Buffers& b, std::uint32_t turn) { timing::prepare(c, b, turn); }
  virtual void call(const Case& c, const Buffers& b) = 0;
  /// Elements that are not as they should be, on this rank.
  [[nodiscard]] virtual std::size_t errors(const Case& c, const Buffers& b, std::uint32_t turn) const {
    return check(c, b.receive, turn);
  }

 private:
  std::string backend_;
  Memory memory_;
};

}  // namespace timing
