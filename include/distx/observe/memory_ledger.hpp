// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

namespace observe {

/// The purpose of memory that a training holds.
enum class MemoryKind : std::uint8_t { weights, gradients, optimizer, replicas, in_flight, activations, offloaded };

/// The bytes that one rank holds for each purpose, now and at peak. A value.
struct MemoryLedger {
  /// Bytes of one purpose.
  struct Use {
    std::uint64_t held = 0;
    std::uint64_t peak = 0;
    friend bool operator==(const Use&, const Use&) = default;
  };
  Use weights;
  Use gradients;
  Use optimizer;
  Use replicas;   ///< copies from which survivors continue, with the policy Replicate
  Use in_flight;  ///< buffers of buckets and gathered weights
  /// What forward passes keep for their backward passes: of layers of `distx::layers`, and what a program counts.
  Use activations;
  /// Optimizer states and master weights in files, which the kernel may keep in memory, or, while a GPU trains, in host
  /// memory; `total` does not count them.
  Use offloaded;
  Use total;  ///< of all other purposes together; its peak is not the sum of their peaks

  /// Returns the bytes as text: "weights 16 bytes, gradients …; in all …, peak …".
  [[nodiscard]] std::string to_string() const {
    const auto one = [](const char* name, const Use& use) {
      return std::string(name) + " " + std::to_string(use.held) + " bytes, ";
    };
    return one("weights", weights) + one("gradients", gradients) + one("optimizer", optimizer) +
           (replicas.peak == 0 ? "" : one("replicas", replicas)) +
           (activations.peak == 0 ? "" : one("activations", activations)) + "in flight " +
           std::to_string(in_flight.held) + " bytes; in all " + std::to_string(total.held) + ", peak " +
           std::to_string(total.peak) +
           (offloaded.peak == 0 ? "" : "; offloaded " + std::to_string(offloaded.held) + " bytes");
  }
  friend bool operator==(const MemoryLedger&, const MemoryLedger&) = default;
};

}  // namespace observe

namespace detail {

/// Counts the memory held; it may be released on another thread.
class MemoryAccount {
 public:
  void add(observe::MemoryKind kind, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto count = [&](observe::MemoryLedger::Use& use) {
      use.held += bytes;
      use.peak = std::max(use.peak, use.held);
    };
    count(of(kind));
    if (kind != observe::MemoryKind::offloaded) count(ledger_.total);
  }
  void remove(observe::MemoryKind kind, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    of(kind).held -= bytes;
    if (kind != observe::MemoryKind::offloaded) ledger_.total.held -= bytes;
  }
  [[nodiscard]] observe::MemoryLedger ledger() const {
    const std::lock_guard lock(mutex_);
    return ledger_;
  }

 private:
  observe::MemoryLedger::Use& of(observe::MemoryKind kind) noexcept {
    using enum observe::MemoryKind;
    if (kind == weights) return ledger_.weights;
    if (kind == gradients) return ledger_.gradients;
    if (kind == optimizer) return ledger_.optimizer;
    if (kind == replicas) return ledger_.replicas;
    if (kind == activations) return ledger_.activations;
    return kind == offloaded ? ledger_.offloaded : ledger_.in_flight;
  }

  mutable std::mutex mutex_;
  observe::MemoryLedger ledger_;
};

}  // namespace detail

namespace observe {

/// Bytes that the memory ledger of a training counts until this object is destroyed. Move-only; it may outlive the
/// training, and be destroyed by any thread.
class CountedMemory {
 public:
  /// Counts nothing.
  CountedMemory() = default;
  CountedMemory(const std::shared_ptr<detail::MemoryAccount>& account, MemoryKind kind, std::size_t bytes)
      : counted_(account.get(), Uncount{account, kind, bytes}) {
    account->add(kind, bytes);
  }

 private:
  struct Uncount {
    std::shared_ptr<detail::MemoryAccount> account;
    MemoryKind kind;
    std::size_t bytes;
    void operator()(detail::MemoryAccount* counting) const noexcept { counting->remove(kind, bytes); }
  };

  std::unique_ptr<detail::MemoryAccount, Uncount> counted_;
};

}  // namespace observe

}  // namespace distx::inline DISTX_ABI
