// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connector.hpp"

namespace distx::detail {

/// Borrows a connector of any type, so that a function that takes one is compiled once.
class ConnectorRef {
 public:
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, ConnectorRef>) && Connector<C>
  ConnectorRef(C& connector) noexcept : connector_(&connector), calls_(&calls_of<C>) {}  // NOLINT

  [[nodiscard]] int rank() const { return calls_->number(connector_, Number::rank); }
  [[nodiscard]] int size() const { return calls_->number(connector_, Number::size); }
  [[nodiscard]] int local_rank() const { return calls_->number(connector_, Number::local_rank); }
  [[nodiscard]] int local_size() const { return calls_->number(connector_, Number::local_size); }
  [[nodiscard]] int root_rank() const { return calls_->number(connector_, Number::root_rank); }
  void barrier() { calls_->barrier(connector_); }
  void broadcast(std::span<std::byte> bytes, int root) { calls_->broadcast(connector_, bytes, root); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    calls_->all_gather(connector_, send, receive);
  }

 private:
  enum class Number { rank, size, local_rank, local_size, root_rank };
  struct Calls {
    int (*number)(const void*, Number);
    void (*barrier)(void*);
    void (*broadcast)(void*, std::span<std::byte>, int);
    void (*all_gather)(void*, std::span<const std::byte>, std::span<std::byte>);
  };
  template <class C>
  static int number_of(const void* connector, Number which) {
    const C& fixed = *static_cast<const C*>(connector);
    switch (which) {
      case Number::rank:
        return fixed.rank();
      case Number::size:
        return fixed.size();
      case Number::local_rank:
        return fixed.local_rank();
      case Number::local_size:
        return fixed.local_size();
      default:
        return fixed.root_rank();
    }
  }
  template <class C>
  static constexpr Calls calls_of = {
      number_of<C>,
      [](void* c) { static_cast<C*>(c)->barrier(); },
      [](void* c, std::span<std::byte> bytes, int root) { static_cast<C*>(c)->broadcast(bytes, root); },
      [](void* c, std::span<const std::byte> send, std::span<std::byte> receive) {
        static_cast<C*>(c)->all_gather(send, receive);
      },
  };

  void* connector_;
  const Calls* calls_;
};

}  // namespace distx::detail
