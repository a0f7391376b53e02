// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <string_view>

#include "distx/connect/connector.hpp"

namespace test {

/// A connector that assigns ranks to hosts, one letter per rank: `011` is one rank alone and two on another host.
template <class Base>
class MadeUpMachines {
 public:
  MadeUpMachines(Base& base, std::string_view machines) : base_(&base), machines_(machines) {}

  [[nodiscard]] int rank() const { return base_->rank(); }
  [[nodiscard]] int size() const { return base_->size(); }
  [[nodiscard]] int local_rank() const { return same(machines_.substr(0, at())); }
  [[nodiscard]] int local_size() const { return same(machines_); }
  [[nodiscard]] int root_rank() const { return base_->root_rank(); }
  void barrier() { base_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) { base_->broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) { base_->all_gather(send, receive); }

 private:
  [[nodiscard]] std::size_t at() const { return static_cast<std::size_t>(rank()); }
  [[nodiscard]] int same(std::string_view ranks) const {
    return static_cast<int>(std::count(ranks.begin(), ranks.end(), machines_[at()]));
  }

  Base* base_;
  std::string_view machines_;
};

}  // namespace test
