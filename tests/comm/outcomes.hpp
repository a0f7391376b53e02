// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <vector>

#include "distx/distx.hpp"

namespace test {

/// The outcome of a rank: "done", or the type of the error and its message.
struct Outcome {
  std::string type = "done";
  std::string words;

  [[nodiscard]] bool says(const std::string& part) const { return words.find(part) != std::string::npos; }
};

template <class F>
Outcome outcome_of(F&& f) {
  const auto told = [](const char* type, const std::exception& error) { return Outcome{type, error.what()}; };
  try {
    f();
    return {};
  } catch (const distx::InvalidArgument& error) {
    return told("InvalidArgument", error);
  } catch (const distx::InvalidState& error) {
    return told("InvalidState", error);
  } catch (const distx::MismatchError& error) {
    return told("MismatchError", error);
  } catch (const distx::TimeoutError& error) {
    return told("TimeoutError", error);
  } catch (const distx::RevokedError& error) {
    return told("RevokedError", error);
  } catch (const distx::RankFailure& error) {
    return told("RankFailure", error);
  } catch (const std::exception& error) {
    return told("another error", error);
  }
}

/// Runs `f(comm)` on thread ranks and returns their outcomes. No communicator is destroyed before all ranks have
/// finished.
template <class F>
std::vector<Outcome> outcomes(int ranks, F f, distx::Timeout deadline = std::chrono::minutes(1)) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  distx::spawn(distx::threads(ranks, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, deadline);
    all[static_cast<std::size_t>(comm.rank())] = outcome_of([&] { f(comm); });
    connector.barrier();
  });
  return all;
}

/// Returns whether every rank has thrown this type with these words in its message.
inline bool all_say(const std::vector<Outcome>& all, const std::string& type, const std::string& part) {
  for (const auto& outcome : all)
    if (outcome.type != type || !outcome.says(part)) return false;
  return true;
}

inline std::string text_of(const std::vector<Outcome>& all) {
  std::string text;
  for (const auto& outcome : all) text += "\n  " + outcome.type + ": " + outcome.words;
  return text;
}

}  // namespace test
