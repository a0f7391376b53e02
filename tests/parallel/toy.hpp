// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/optim/adamw.hpp>
#include <distx/optim/sgd.hpp>
#include <distx/threads.hpp>
#include <distx/training.hpp>

#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "scattered.hpp"

// A model small enough to be worked out by hand: the loss of one sample is half the squared distance of all weights to
// that sample's targets, so that a weight's gradient is weight - target.
namespace toy {

inline constexpr int rank_counts[] = {1, 2, 3, 4, 7};

/// Among them one of more than 64 KiB, which is not packed, and several that are.
inline const std::vector<std::size_t> sizes = {17, 1, 20000, 64, 3, 1000, 33, 7};

inline double first_weight(std::size_t parameter, std::size_t i) { return test::scattered(1000003 * parameter + i); }
inline double target(std::size_t parameter, std::size_t i, std::size_t sample) {
  return test::scattered(7919 + 1000003 * parameter + i + 100000007 * sample);
}

struct Layer {
  std::string name;
  std::vector<float> weight;
  std::vector<float> gradient;
};

struct Model {
  std::vector<Layer> layers;

  explicit Model(double offset = 0) {
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      layers.push_back({"layer" + std::to_string(p), std::vector<float>(sizes[p]), std::vector<float>(sizes[p])});
      for (std::size_t i = 0; i < sizes[p]; ++i) layers[p].weight[i] = static_cast<float>(first_weight(p, i) + offset);
    }
  }
  [[nodiscard]] std::vector<distx::ParameterRef<float>> parameters(const distx::ParameterOptions& options = {}) {
    std::vector<distx::ParameterRef<float>> all;
    for (auto& layer : layers) all.push_back(distx::ref(layer.name, layer.weight, layer.gradient, options));
    return all;
  }
  /// The mean gradient of samples first, first + 1, … of one layer.
  void backward(std::size_t p, std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < sizes[p]; ++i) {
      float sum = 0;
      for (std::size_t sample = first; sample < first + count; ++sample)
        sum += layers[p].weight[i] - static_cast<float>(target(p, i, sample));
      layers[p].gradient[i] = sum / static_cast<float>(count);
    }
  }
  /// All weights, one after another.
  [[nodiscard]] std::vector<float> weights() const {
    std::vector<float> all;
    for (const auto& layer : layers) all.insert(all.end(), layer.weight.begin(), layer.weight.end());
    return all;
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Runs `f(comm)` on every rank; no wait in it lasts longer than 20 seconds.
template <class F>
void on_ranks(int ranks, F&& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    f(comm);
  });
}

/// How each rank ended.
struct Ending {
  /// "argument", "state", "mismatch", "revoked", "timeout", "not finite", "error" (another of distx) or "another"
  std::string kind = "no error";
  std::string words;
};

/// How `f()` ends.
template <class F>
Ending ending_of(F&& f) {
  try {
    f();
  } catch (const distx::InvalidArgument& error) {
    return {"argument", error.what()};
  } catch (const distx::InvalidState& error) {
    return {"state", error.what()};
  } catch (const distx::MismatchError& error) {
    return {"mismatch", error.what()};
  } catch (const distx::RevokedError& error) {
    return {"revoked", error.what()};
  } catch (const distx::TimeoutError& error) {
    return {"timeout", error.what()};
  } catch (const distx::NonFiniteError& error) {
    return {"not finite", error.what()};
  } catch (const distx::Error& error) {
    return {"error", error.what()};
  } catch (const std::exception& error) {
    return {"another", error.what()};
  }
  return {};
}

/// Runs `f(comm)` on every rank and returns how each ended.
template <class F>
std::vector<Ending> endings(int ranks, F&& f) {
  std::vector<Ending> all(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = ending_of([&] { f(comm); });
  });
  return all;
}

inline bool says(const std::string& sentence, const std::string& words) {
  return sentence.find(words) != std::string::npos;
}

}  // namespace toy
