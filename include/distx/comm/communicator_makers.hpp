// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/comm/any_communicator.hpp"
#include "distx/connect/connector.hpp"
#include "distx/core/deadline.hpp"

namespace distx {

/// A way to make a communicator that a vendor's header makes known to `best_communicator()`.
struct CommunicatorMaker {
  std::string_view name;  ///< "mpi"; the header is <distx/mpi.hpp>
  AnyCommunicator<> (*make)(AnyConnector&, Timeout);
  bool (*serves_threads)();  ///< whether several threads of a rank may each use one, at once
};

namespace detail {

inline std::vector<CommunicatorMaker>& communicator_makers() {
  static std::vector<CommunicatorMaker> known;
  return known;
}

/// @throws ConnectError that names the header to include
[[nodiscard]] inline const CommunicatorMaker& maker_of(std::string_view name, const ErrorContext& context) {
  const auto& known = communicator_makers();
  const auto maker = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.name == name; });
  if (maker == known.end())
    throw ConnectError("these " + std::to_string(context.size) + " ranks need a communicator of <distx/" +
                           std::string(name) + ".hpp>: include it beside <distx/distx.hpp>",
                       context);
  return *maker;
}

/// A connector that is someone else's.
template <Connector C>
class ConnectorRef {
 public:
  explicit ConnectorRef(C& connector) noexcept : connector_(&connector) {}

  [[nodiscard]] int rank() const { return connector_->rank(); }
  [[nodiscard]] int size() const { return connector_->size(); }
  [[nodiscard]] int local_rank() const { return connector_->local_rank(); }
  [[nodiscard]] int local_size() const { return connector_->local_size(); }
  [[nodiscard]] int root_rank() const { return connector_->root_rank(); }
  void barrier() { connector_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) { connector_->broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    connector_->all_gather(send, receive);
  }
  [[nodiscard]] C& get() const noexcept { return *connector_; }

 private:
  C* connector_;
};

template <Connector C>
[[nodiscard]] AnyCommunicator<> make_communicator(std::string_view name, C& connector, Timeout deadline,
                                                  const ErrorContext& context) {
  const CommunicatorMaker& maker = maker_of(name, context);
  if constexpr (std::same_as<C, AnyConnector>) {
    return maker.make(connector, deadline);
  } else {
    AnyConnector any{ConnectorRef<C>(connector)};
    return maker.make(any, deadline);
  }
}

}  // namespace detail

/// Makes a communicator known to `best_communicator()`; vendors' entry headers call it before main.
inline bool register_communicator(const CommunicatorMaker& maker) {
  for (const auto& known : detail::communicator_makers())
    if (known.name == maker.name) return false;
  detail::communicator_makers().push_back(maker);
  return true;
}

}  // namespace distx
