// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distx/comm/messages/description_exchange.hpp"
#include "distx/comm/messages/piecewise_transfer.hpp"
#include "distx/connect/detail/name_ranks.hpp"
#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the message of a timeout. @param ranks  those that are missing
[[nodiscard]] inline std::string overdue_text(const Timeout& deadline, const std::vector<int>& ranks,
                                              const char* omission) {
  return "timed out after " + deadline.to_string() + ": " +
         (ranks.empty() ? "this rank was delayed" : listed(ranks) + omission);
}
/// @name What the ranks that are missing in a stage of a call did not do
/// @{
inline constexpr const char* did_not_join = " did not join";
inline constexpr const char* did_not_continue = " did not continue the call";
/// @}

/// Collectives over messages, which every rank makes in one order: compares the ranks' calls, and transfers operands.
///
/// `wait(ready, overdue)` waits until `ready()`, and throws if the communicator is revoked, which it is after each
/// failure, or at the deadline a TimeoutError with the message `overdue()`. If a call throws while the transport still
/// uses memory of this object, that memory is never freed.
template <MessageTransport T>
class MessageCollectives {
 public:
  /// @param transport  has no other messages with its tags
  /// @param with_counts  whether `transfer` supports calls with any counts on these ranks
  MessageCollectives(T transport, const RankOf& self, const Timeout& deadline, bool with_counts = true)
      : transport_(std::move(transport)),
        self_(self),
        deadline_(deadline),
        with_counts_(with_counts),
        exchange_(std::make_unique<Exchange>(transport_, self, with_counts)),
        pieces_(std::make_unique<Pieces>(transport_, self)) {}
  ~MessageCollectives() {
    if (!exchange_->over()) (void)exchange_.release();
  }

  [[nodiscard]] T& transport() noexcept { return transport_; }

  /// Makes call number `number`. Collective.
  template <class Wait>
  [[gnu::always_inline]] void run(const Call<Host>& call, std::uint64_t number, const ErrorContext& context,
                                  Wait&& wait) {
    if (!join(call, number, context, wait)) transfer(call, number, context, wait);
  }
  /// Waits until every rank has joined the call, and compares; returns whether the call is complete.
  template <class Wait>
  [[nodiscard]] bool join(const Call<Host>& call, std::uint64_t number, const ErrorContext& context, Wait&& wait) {
    try {
      exchange_->begin(call, number, context);
      wait([&] { return exchange_->advance(context); },
           [&] { return overdue_text(deadline_, exchange_->missing(), did_not_join); });
    } catch (...) {
      // The communicator is revoked now and needs no other.
      if (!exchange_->abandon()) (void)exchange_.release();
      exchange_ = std::make_unique<Exchange>(transport_, self_, with_counts_);
      throw;
    }
    exchange_->compare(call, context);
    if (!exchange_->all_inlined(call)) return false;
    exchange_->complete(call);
    return true;
  }
  /// Transfers a call that all ranks have joined.
  template <class Wait>
  void transfer(const Call<Host>& call, std::uint64_t number, const ErrorContext& context, Wait&& wait) {
    if (call.kind == CollectiveKind::barrier) return;
    try {
      pieces_->run(call, exchange_->views(), number, context, [&](auto&& complete) {
        wait(complete, [&] { return overdue_text(deadline_, pieces_->missing(), did_not_continue); });
      });
    } catch (...) {
      if (!pieces_->abandon()) (void)pieces_.release();
      throw;
    }
  }

 private:
  using Exchange = DescriptionExchange<T>;
  using Pieces = PiecewiseTransfer<T>;

  T transport_;
  RankOf self_;
  Timeout deadline_;
  bool with_counts_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Pieces> pieces_;
};

}  // namespace distx::inline DISTX_ABI::detail
