// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "distx/core/error.hpp"
#include "distx/memory/local_matmul.hpp"

namespace distx::inline DISTX_ABI::layers {

/// The choices of a router in one forward pass, for the tokens of one rank.
struct Routed {
  std::string name;                      ///< of the layer
  std::vector<std::uint64_t> of_expert;  ///< tokens that each expert gets from this rank
  std::uint64_t dropped = 0;             ///< choices beyond an expert's capacity
  double balance = 0;                    ///< the load-balancing loss, without its weight; 1 where loads are equal
  double z = 0;                          ///< the z-loss, without its weight

  /// Returns a line such as "block0: 12 7 9 4 tokens for the experts, 1 dropped".
  [[nodiscard]] std::string to_string() const {
    std::string text = name + ":";
    for (const auto count : of_expert) text += " " + std::to_string(count);
    return text + " tokens for the experts, " + std::to_string(dropped) + " dropped";
  }
};

/// The rules by which routers choose experts, and the weights of their losses. Layers share them; the program may
/// change them between passes, on all ranks alike.
struct RouterSettings {
  /// Experts of each token: those of its greatest probabilities. The results of several are weighted by these
  /// probabilities divided by their sum, the result of a single one by its probability.
  std::size_t experts_per_token = 2;
  /// An expert takes at most `capacity` times the mean number of choices per expert, rounded up, from each rank: first
  /// choices before second ones, and each in the order of tokens. The others are dropped, which adds zero for them.
  double capacity = std::numeric_limits<double>::infinity();
  /// The weight of the load-balancing loss: the number of experts times the sum over experts of the product of its
  /// share of choices and its mean probability (Fedus et al., 2021, arXiv 2101.03961), over the tokens of one rank.
  double balance = 0.01;
  /// The weight of the mean square of the logarithm of the sum of exponentials of a token's logits (Zoph et al., 2022,
  /// arXiv 2202.08906).
  double z = 0.001;
  /// The share of these losses in the loss that backward passes differentiate, as the program scales its own: 1 / n
  /// with n micro-batches.
  double loss_share = 1;
  /// Called in each forward pass, also when a Recomputed layer repeats it.
  std::function<void(const Routed&)> on_routed{};
};

}  // namespace distx::inline DISTX_ABI::layers

namespace distx::inline DISTX_ABI::detail {

/// The experts of one rank's tokens, by the logits of a gate.
///
/// A choice is one of a token's experts; choice j of token t has the number k t + j. The choices that are not dropped
/// are `sent` in the order of experts, and of tokens for each.
template <class T>
class Routing {
 public:
  static constexpr std::uint64_t dropped = std::numeric_limits<std::uint64_t>::max();

  /// @param logits  (tokens, experts)
  Routing(MatrixRef<const T> logits, const layers::RouterSettings& settings)
      : tokens_(logits.rows),
        experts_(logits.columns),
        of_token_(settings.experts_per_token),
        probabilities_(tokens_ * experts_),
        log_sums_(tokens_),
        expert_(tokens_ * of_token_),
        weight_(tokens_ * of_token_),
        place_(tokens_ * of_token_, dropped),
        chosen_(experts_),
        sizes_(experts_) {
    for (std::size_t t = 0; t < tokens_; ++t) {
      const T* const row = logits.at(t, 0);
      const double most = *std::max_element(row, row + experts_);
      const std::span<double> of_token(probabilities_.data() + t * experts_, experts_);
      std::transform(row, row + experts_, of_token.begin(),
                     [=](T x) { return std::exp(static_cast<double>(x) - most); });
      const double sum = std::accumulate(of_token.begin(), of_token.end(), 0.0);
      for (double& each : of_token) each /= sum;
      log_sums_[t] = most + std::log(sum);
      double chosen = 0;
      const std::span<std::uint64_t> own(expert_.data() + t * of_token_, of_token_);
      for (std::size_t j = 0; j < of_token_; ++j) chosen += probability(t, own[j] = next_best(row, own.first(j)));
      for (std::size_t j = 0; j < of_token_; ++j)
        weight_[t * of_token_ + j] = probability(t, own[j]) / (of_token_ > 1 ? chosen : 1);
    }
    choose(settings.capacity);
  }

  /// The choices that are sent to each expert.
  [[nodiscard]] const std::vector<std::uint64_t>& sizes() const noexcept { return sizes_; }

  [[nodiscard]] layers::Routed report(std::string name) const {
    layers::Routed routed{std::move(name), sizes_, tokens_ * of_token_ - sent_};
    if (tokens_ == 0) return routed;
    const auto n = static_cast<double>(tokens_);
    for (std::size_t e = 0; e < experts_; ++e) {
      double mean = 0;
      for (std::size_t t = 0; t < tokens_; ++t) mean += probability(t, e) / n;
      routed.balance += static_cast<double>(experts_) * share_of(e) * mean;
    }
    for (const double each : log_sums_) routed.z += each * each / n;
    return routed;
  }

  /// Returns the rows (tokens, width) of the choices that are sent.
  [[nodiscard]] Buffer<T> rows(const T* from, std::size_t width) const {
    Buffer<T> to(sent_ * width, uninitialized);
    for (std::size_t i = 0; i < place_.size(); ++i)
      if (place_[i] != dropped) std::copy_n(from + i / of_token_ * width, width, to.data() + place_[i] * width);
    return to;
  }
  /// Returns the same rows times the weights of the choices.
  [[nodiscard]] Buffer<T> weighted_rows(const T* from, std::size_t width) const {
    auto to = rows(from, width);
    for (std::size_t i = 0; i < place_.size(); ++i)
      if (place_[i] != dropped)
        for (std::size_t c = 0; c < width; ++c) to.data()[place_[i] * width + c] *= static_cast<T>(weight_[i]);
    return to;
  }
  /// Adds to each row of `to`, (tokens, width), those of its choices; with `weighted` times their weights.
  void add_to(T* to, const T* rows, std::size_t width, bool weighted) const {
    for (std::size_t i = 0; i < place_.size(); ++i) {
      if (place_[i] == dropped) continue;
      const T weight = weighted ? static_cast<T>(weight_[i]) : T{1};
      const T* const row = rows + place_[i] * width;
      T* const sum = to + i / of_token_ * width;
      for (std::size_t c = 0; c < width; ++c) sum[c] += weight * row[c];
    }
  }

  /// Sets the gradient of the logits, (tokens, experts).
  /// @param results, gradient  of the choices that were sent, (sent, width), and of the tokens, (tokens, width)
  /// @param share  of the router's own losses; 0 where another rank adds them
  void backward(const T* results, const T* gradient, std::size_t width, const layers::RouterSettings& settings,
                double share, T* out) const {
    const auto n = static_cast<double>(tokens_);
    std::vector<double> of_choice(of_token_), slope(experts_);
    for (std::size_t t = 0; t < tokens_; ++t) {
      double mean = 0, chosen = 0;
      for (std::size_t j = 0; j < of_token_; ++j) {
        const std::size_t i = t * of_token_ + j;
        of_choice[j] = 0;
        if (place_[i] != dropped)
          for (std::size_t c = 0; c < width; ++c)
            of_choice[j] +=
                static_cast<double>(results[place_[i] * width + c]) * static_cast<double>(gradient[t * width + c]);
        mean += of_choice[j] * weight_[i];
        chosen += probability(t, expert_[i]);
      }
      for (std::size_t e = 0; e < experts_; ++e)
        slope[e] = share * settings.balance * static_cast<double>(experts_) * share_of(e) / n;
      for (std::size_t j = 0; j < of_token_; ++j)
        slope[expert_[t * of_token_ + j]] += of_token_ > 1 ? (of_choice[j] - mean) / chosen : of_choice[j];
      double expected = 0;
      for (std::size_t e = 0; e < experts_; ++e) expected += slope[e] * probability(t, e);
      const double of_sum = share * settings.z * 2 * log_sums_[t] / n;
      for (std::size_t e = 0; e < experts_; ++e)
        out[t * experts_ + e] = static_cast<T>(probability(t, e) * (slope[e] - expected + of_sum));
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return (probabilities_.size() + log_sums_.size() + weight_.size()) * sizeof(double) +
           (expert_.size() + place_.size()) * sizeof(std::uint64_t);
  }

 private:
  /// The expert with the greatest logit, which no rounding has made equal to another one, of those not yet chosen.
  [[nodiscard]] std::uint64_t next_best(const T* row, std::span<const std::uint64_t> chosen) const {
    std::uint64_t best = experts_;
    for (std::uint64_t e = 0; e < experts_; ++e)
      if (std::ranges::find(chosen, e) == chosen.end() && (best == experts_ || row[e] > row[best])) best = e;
    return best;
  }
  [[nodiscard]] double probability(std::size_t t, std::size_t e) const { return probabilities_[t * experts_ + e]; }
  /// The expert's share of all choices, dropped ones included.
  [[nodiscard]] double share_of(std::size_t e) const {
    return static_cast<double>(chosen_[e]) / static_cast<double>(tokens_ * of_token_);
  }
  void choose(double capacity) {
    const double most = std::ceil(capacity * static_cast<double>(tokens_ * of_token_) / static_cast<double>(experts_));
    std::vector<bool> taken(expert_.size());
    for (std::size_t j = 0; j < of_token_; ++j)
      for (std::size_t i = j; i < expert_.size(); i += of_token_) {
        ++chosen_[expert_[i]];
        taken[i] = static_cast<double>(sizes_[expert_[i]]) < most;
        if (taken[i]) ++sizes_[expert_[i]];
      }
    std::vector<std::uint64_t> next(experts_);
    std::exclusive_scan(sizes_.begin(), sizes_.end(), next.begin(), std::uint64_t{0});
    for (std::size_t i = 0; i < expert_.size(); ++i)
      if (taken[i]) place_[i] = next[expert_[i]]++;
    sent_ = std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
  }

  std::size_t tokens_, experts_, of_token_;
  std::vector<double> probabilities_, log_sums_;
  std::vector<std::uint64_t> expert_;  // of each choice
  std::vector<double> weight_;         // of each choice
  std::vector<std::uint64_t> place_;   // of each choice among those sent
  std::vector<std::uint64_t> chosen_, sizes_;
  std::size_t sent_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail
