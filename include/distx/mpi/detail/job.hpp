// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/message_header.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/detail/widened.hpp"
#include "distx/mpi/detail/datatypes.hpp"
#include "distx/mpi/detail/transport.hpp"
#include "distx/mpi/detail/world.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Operands in a form that MPI can reduce; `send` is MPI_IN_PLACE if they are in `receive`.
struct Operands {
  const void* send = nullptr;
  void* receive = nullptr;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
  std::size_t bytes = 1;

  [[nodiscard]] const void* send_at(std::size_t offset) const noexcept {
    return send == MPI_IN_PLACE ? send : static_cast<const std::byte*>(send) + offset * bytes;
  }
  [[nodiscard]] void* receive_at(std::size_t offset) const noexcept {
    return receive == nullptr ? nullptr : static_cast<std::byte*>(receive) + offset * bytes;
  }
};

/// One call in MPI's hands: its requests and everything that they need until they are complete.
///
/// Jobs are reused, so only the first calls allocate. MPI stores the address of a job, so it is not movable.
class Job {
 public:
  /// @param max_count  the maximum number of units in one call of MPI
  Job(const Transport& transport, std::size_t max_count, World& world)
      : self(transport.self), most(max_count), transport_(transport), world_(world) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Prepares for a collective on `comm`, whose messages use tags from `tag` on, or for a user's message.
  /// @pre no request is in flight
  void open(const Call<Host>& c, MPI_Comm comm, bool started, int tag) noexcept {
    context_ = self.context(c);
    comm_ = comm;
    started_ = started;
    received_data_ = false;
    tag_ = tag;
    user_tag_ = traits_of(c.kind).message ? std::optional(c.tag) : std::nullopt;
  }
  [[nodiscard]] const ErrorContext& context() const noexcept { return context_; }

  /// Calls the blocking MPI function with these arguments and the communicator, or its nonblocking counterpart with a
  /// request.
  template <class Blocking, class Starting, class... A>
  void call(const char* routine, Blocking* blocking, Starting* starting, A... arguments) {
    check(started_ ? starting(arguments..., comm_, &add({})) : blocking(arguments..., comm_), routine, context_);
  }

  /// Sends a user's message, or a rank's block of a collective: a header, and the data with it if they are small;
  /// otherwise as further MPI messages, whose tag depends on the header. Of data that differ from what a started
  /// receive expects, one in `data_tags` matches that receive, past whose end MPI may write.
  void send(Span<const AnyElement> data, std::uint64_t lengths, int to) {
    const MessageHeader header = MessageHeader::of(data, lengths);
    const bool small = data.size_bytes() <= most_inlined();
    const std::size_t bytes = sizeof header + (small ? data.size_bytes() : 0);
    std::byte* const first = slot(outgoing_, sent_++, sizeof header + most_inlined());
    std::memcpy(first, &header, sizeof header);
    if (small && !data.empty()) std::memcpy(first + sizeof header, data.data(), data.size_bytes());
    send_piece(first, static_cast<int>(bytes), MPI_BYTE, to, header_tag());
    if (small) return;
    const Unit unit = unit_of(data);
    in_pieces(data.size() * unit.per_element, most, [&](std::size_t offset, int count) {
      send_piece(data.bytes() + offset * unit.bytes, count, unit.type, to, data_tag(header));
    });
  }
  /// Receives such a message. A blocking receive waits for the header, to compare it before MPI may write the data:
  /// Open MPI, with some protocols for large messages, writes past the end of a receive that is too small.
  void receive(Span<AnyElement> target, std::uint64_t lengths, int from) {
    const MessageHeader expected = MessageHeader::of(target, lengths);
    const std::size_t bytes = sizeof expected + most_inlined();  // also for a shorter message than is expected
    std::byte* const first = slot(arriving_, incoming_.size(), bytes);
    receive_piece(first, static_cast<int>(bytes), MPI_BYTE, from, header_tag());
    incoming_.push_back({expected, target, from, requests_.size() - 1, first});
    // At once, so that the data of messages with one tag match in their order.
    if (started_ && target.size_bytes() > most_inlined()) receive_data(incoming_.back());
  }
  /// Returns the rank and the tag of the message that a user receives, negative if there is none. Messages for which
  /// they are equal arrive in order.
  [[nodiscard]] std::pair<int, int> origin() const noexcept {
    return incoming_.empty() || !user_tag_ ? std::pair{-1, -1} : std::pair{incoming_[0].from, *user_tag_};
  }
  /// Takes the headers that have arrived; returns whether all have.
  bool take_headers() {
    bool all = true;
    for (Incoming& message : incoming_) {
      if (message.header_taken) continue;
      if (try_complete(requests_[message.request], "MPI_Test", context_))
        take_header(message);
      else
        all = false;
    }
    return all;
  }
  /// Returns whether the last call received data that MPI has perhaps read from the sender's memory after its call.
  [[nodiscard]] bool received_data() const noexcept { return received_data_; }

  /// Prepares a reduction of `send` into `receive`, which is empty if this rank receives no result. @param scatters
  /// whether that is a block of the result, which MPI must not write to its place in `send`
  [[nodiscard]] Operands reduction(const calls::AnyOp& op, Span<const AnyElement> send, Span<AnyElement> receive,
                                   bool scatters = false) {
    const bool wide = is_narrow_float(send.type()), receives = receive.data() != nullptr;
    const bool in_place = scatters
                              ? receive.bytes() >= send.bytes() && receive.bytes() < send.bytes() + send.size_bytes()
                              : receive.data() == send.data();
    Operands o{send.data(), receive.data(), datatype_of(send.type()), MPI_OP_NULL, send.element_bytes()};
    if (wide) {
      const std::size_t count = send.size() + (scatters ? receive.size() : 0);
      float* const sums = reinterpret_cast<float*>(scratch(count * sizeof(float)));
      detail::widen(send, sums);
      o = {sums, receives ? sums + (scatters ? send.size() : 0) : nullptr, MPI_FLOAT, MPI_OP_NULL, sizeof(float)};
    } else if (scatters && in_place) {
      o.receive = scratch(receive.size_bytes());
    }
    if (receives && !scatters && (wide || in_place)) o.send = MPI_IN_PLACE;
    if (is_native(op.kind(), op.type())) {
      o.op = op_of(op.kind());
    } else {
      user_.op = wide ? op.widened() : op;
      auto& type = user_types_[static_cast<std::size_t>(user_.op.type())];
      if (!type) type = carrying(o.type, user_);
      o.type = type.native_handle();
      o.op = mpi::user_op(op.commutative());
    }
    if (receives && (op.finishes() || o.receive != receive.data()))
      finish_.emplace(Finish{wide ? op.widened() : op, o.receive, receive});
    return o;
  }
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return scratch_.data();
  }

  /// Returns whether MPI still uses this object, whose memory must then never be freed.
  [[nodiscard]] bool left_behind() const noexcept { return left_behind_; }
  /// Leaves this object to MPI, which is in a call on another thread.
  void leave() noexcept { left_behind_ = true; }
  [[nodiscard]] bool idle() const noexcept { return requests_.empty(); }

  /// Returns whether all requests are complete and the sizes of the received messages have been checked.
  bool test() {
    if (requests_.empty()) return true;
    if (!take_headers()) return false;
    int all = 0;
    statuses_.resize(requests_.size());
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
    if (code != MPI_SUCCESS) {
      for (const auto& status : statuses_)
        if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
          fail(status.MPI_ERROR, "MPI_Testall", context_);
      fail(code, "MPI_Testall", context_);
    }
    if (all != 0) clear();
    return all != 0;
  }

  /// Returns the message of a timeout of this call: of a user's message, it names the ranks that are awaited.
  [[nodiscard]] std::string overdue(const Timeout& deadline) const {
    std::string ranks;
    for (std::size_t i = 0; i < requests_.size() && user_tag_; ++i) {
      const Awaited& awaited = awaited_[i];
      if (is_complete(requests_[i])) continue;
      const bool begun = awaited.receives && incoming_[0].header_taken;
      const char* const what = !awaited.receives ? " did not receive"
                               : begun           ? " did not send all of"
                                                 : " did not send";
      const std::string text =
          "rank " + std::to_string(awaited.peer) + what + " a message with tag " + std::to_string(*user_tag_);
      // The header and the data of a message are one message for the user.
      if (ranks.find(text) == std::string::npos) ranks += (ranks.empty() ? "" : " and ") + text;
    }
    return "timed out after " + deadline.to_string() + ": " +
           (!ranks.empty() ? ranks
                           : "not all ranks joined and continued the call; MPI keeps its operands, which must exist "
                             "until this process ends");
  }

  /// Does the local work after the communication.
  void finish() {
    if (user_.error != nullptr) std::rethrow_exception(std::exchange(user_.error, nullptr));
    if (!finish_) [[likely]]
      return;
    const Finish f = *std::exchange(finish_, std::nullopt);
    const auto count = f.target.size();
    const void* const source = f.result;
    if (f.op.finishes()) f.op.reduce(&f.result, 1, &source, 1, count, self.size);
    if (f.result == f.target.data() || count == 0) return;
    if (is_narrow_float(f.target.type()))
      detail::narrow(static_cast<const float*>(source), f.target);
    else
      std::memcpy(f.target.data(), source, f.target.size_bytes());
  }

  /// Gives up the requests in flight: cancels receives and lets the rest complete for some time, so MPI does not read
  /// memory that its owner frees; MPI keeps the requests that do not complete. A receive that has begun cannot be
  /// cancelled, and is waited for. Messages from and to a rank that is known to have ended are not.
  void abandon(std::chrono::milliseconds patience) noexcept {
    if (left_behind_) return;
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && awaited_[i].receives) MPI_Cancel(&requests_[i]);
    const auto has_ended = [](MPI_Request& request) {
      int complete = 0;
      return request == MPI_REQUEST_NULL || MPI_Test(&request, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
             complete != 0;
    };
    const auto all = [&](auto&& holds) {
      for (std::size_t i = 0; i < requests_.size(); ++i)
        if (!has_ended(requests_[i]) && !holds(awaited_[i])) return false;
      return true;
    };
    const auto sends = [](const Awaited& awaited) { return !awaited.receives; };
    const auto unreachable = [&](const Awaited& awaited) {
      return awaited.peer >= 0 && world_.has_ended(transport_.ranks[static_cast<std::size_t>(awaited.peer)]);
    };
    (void)wait_until(
        no_timeout, [&] { return all(sends); },
        [&] { return all([&](const Awaited& awaited) { return sends(awaited) || unreachable(awaited); }); });
    const auto none = [](const Awaited&) { return false; };
    if (wait_until(patience, [&] { return all(none); }, [&] { return all(unreachable); }) != WaitEnd::ready)
      left_behind_ = true;
    clear();
    finish_.reset();
    user_.error = nullptr;
  }

  static constexpr std::chrono::milliseconds least_patience{100};

  const calls::RankOf self;
  const std::size_t most;           ///< the maximum number of units in one call of MPI
  std::vector<int> counts, places;  ///< arguments of a call

 private:
  /// The message of a request, if it is one of a message.
  struct Awaited {
    bool receives = false;
    int peer = -1;  ///< the other rank of a message
  };
  /// A message that is received.
  struct Incoming {
    MessageHeader expected{};
    Span<AnyElement> target{};
    int from = 0;
    std::size_t request = 0;     ///< of the header
    std::byte* first = nullptr;  ///< the header, and the data if they are small
    bool header_taken = false;
  };
  /// The local work at the end of a reduction: the op's `finish` on `result`, and the copy to `target`.
  struct Finish {
    calls::AnyOp op;
    void* result;
    Span<AnyElement> target;
  };

  /// Returns up to how many bytes the data travel in the message of the header. Open MPI sends up to 4 KiB eagerly, its
  /// own header included. A collective has messages with all ranks, so memory for less of each.
  [[nodiscard]] std::size_t most_inlined() const noexcept { return user_tag_ ? 4096 - 128 : 256; }
  /// Returns memory for the first part of a message, whose address stays.
  [[nodiscard]] static std::byte* slot(std::vector<Buffer<std::byte>>& slots, std::size_t number, std::size_t bytes) {
    if (number == slots.size()) slots.emplace_back();
    if (slots[number].size() < bytes) slots[number] = Buffer<std::byte>(bytes);
    return slots[number].data();
  }
  [[nodiscard]] const RankMap& messages() const noexcept { return user_tag_ ? transport_.messages : transport_.calls; }
  /// Returns the tag of a header. The tags of a user's tag follow, among which a header chooses that of its data.
  [[nodiscard]] int header_tag() const noexcept { return tag_ + (1 + transport_.data_tags) * user_tag_.value_or(0); }
  [[nodiscard]] int data_tag(const MessageHeader& header) const noexcept {
    const auto tags = static_cast<std::uint64_t>(user_tag_ ? transport_.data_tags : 1);
    return header_tag() + 1 + static_cast<int>(digest_of(header) % tags);
  }
  /// Sends an MPI message; to this rank synchronously, because MPI would buffer a small self-send and report it as
  /// complete.
  void send_piece(const std::byte* data, int count, MPI_Datatype type, int to, int tag) {
    const auto start = to == self.rank ? MPI_Issend : MPI_Isend;
    check(start(data, count, type, messages()[to], tag, messages().comm, &add({.peer = to})),
          to == self.rank ? "MPI_Issend" : "MPI_Isend", context_);
  }
  void receive_piece(std::byte* data, int count, MPI_Datatype type, int from, int tag) {
    MPI_Request& request = add({.receives = true, .peer = from});
    check(MPI_Irecv(data, count, type, messages()[from], tag, messages().comm, &request), "MPI_Irecv", context_);
  }
  /// Compares a header that has arrived, and takes the data if they are with it.
  void take_header(Incoming& message) {
    MessageHeader theirs;
    std::memcpy(&theirs, message.first, sizeof theirs);
    if (theirs != message.expected)
      throw MismatchError(difference(message.expected, theirs, message.from, false), context_);
    message.header_taken = true;
    const Span<AnyElement>& target = message.target;
    if (target.size_bytes() > most_inlined()) {
      if (!started_) receive_data(message);
    } else if (!target.empty()) {
      std::memcpy(target.data(), message.first + sizeof theirs, target.size_bytes());
    }
  }
  void receive_data(const Incoming& message) {
    received_data_ = true;
    const Unit unit = unit_of(message.target);
    in_pieces(message.target.size() * unit.per_element, most, [&](std::size_t offset, int count) {
      receive_piece(message.target.bytes() + offset * unit.bytes, count, unit.type, message.from,
                    data_tag(message.expected));
    });
  }
  MPI_Request& add(const Awaited& awaited) {
    awaited_.push_back(awaited);
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }
  void clear() noexcept {
    requests_.clear();
    incoming_.clear();
    sent_ = 0;
    awaited_.clear();
  }

  const Transport& transport_;
  World& world_;
  ErrorContext context_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool started_ = false;
  bool left_behind_ = false;
  int tag_ = 0;
  std::optional<int> user_tag_{};  ///< of a user's message
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Awaited> awaited_;
  std::vector<Incoming> incoming_;
  std::size_t sent_ = 0;                                    // messages
  std::vector<Buffer<std::byte>> outgoing_{}, arriving_{};  // their first parts
  bool received_data_ = false;
  std::optional<Finish> finish_;
  Buffer<std::byte> scratch_;
  UserOp user_;
  std::array<unique_datatype, distx::detail::element_type_count> user_types_;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi
