// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/message_header.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/detail/widened.hpp"
#include "distx/mpi/detail/datatypes.hpp"
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
  Job(const calls::RankOf& own, std::size_t max_count, const World& world)
      : self(own), most(max_count), world_(world) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Prepares for collectives on `comm`; messages use `messages`, and tags from `tag` on.
  /// @param data_tags  the tags of a user's tag among which the header of a message chooses that of its data
  /// @pre no request is in flight; `messages` outlives them
  void open(MPI_Comm comm, const RankMap& messages, bool started, int tag, int data_tags = 1) noexcept {
    comm_ = comm;
    messages_ = &messages;
    started_ = started;
    received_data_ = false;
    tag_ = tag;
    data_tags_ = data_tags;
    user_tag_.reset();
  }

  /// Calls the blocking MPI function with these arguments and the communicator, or its nonblocking counterpart with a
  /// request.
  template <class Blocking, class Starting, class... A>
  [[nodiscard]] int call(Blocking* blocking, Starting* starting, A... arguments) {
    if (!started_) return blocking(arguments..., comm_);
    return starting(arguments..., comm_, &add({}));
  }
  void check(int code, const char* routine, const Call<Host>& c) const {
    if (code != MPI_SUCCESS) [[unlikely]]
      fail(code, routine, self.context(c));
  }

  /// Sends elements; to this rank synchronously, because MPI would buffer a small self-send and report it as complete.
  void send(const Call<Host>& c, Span<const AnyElement> data, int to, int tag) {
    const auto start = to == self.rank ? MPI_Issend : MPI_Isend;
    const Unit unit = unit_of(data);
    in_message_pieces(data.size() * unit.per_element, most, [&](std::size_t offset, int count) {
      const std::byte* const piece = data.bytes() + offset * unit.bytes;
      check(start(piece, count, unit.type, (*messages_)[to], tag, messages_->comm, &add({.peer = to})),
            to == self.rank ? "MPI_Issend" : "MPI_Isend", c);
    });
  }
  /// Receives elements. A blocking receive without a header waits for the message, to check its size before MPI may
  /// write it: Open MPI, with some protocols for large messages, writes past the end of a receive that is too small.
  void receive(const ErrorContext& context, Span<AnyElement> data, int from, int tag) {
    const bool matched = started_ || incoming_;
    const Unit unit = unit_of(data);
    in_message_pieces(data.size() * unit.per_element, most, [&](std::size_t offset, int count) {
      std::byte* const piece = data.bytes() + offset * unit.bytes;
      MPI_Request& request = add({true, matched, false, from, tag, piece, count, unit});
      if (matched)
        mpi::check(MPI_Irecv(piece, count, unit.type, (*messages_)[from], tag, messages_->comm, &request), "MPI_Irecv",
                   context);
      else
        ++unmatched_;
    });
  }
  /// Data up to this size travel in the message of the header: Open MPI sends up to 4 KiB eagerly, its own header
  /// included.
  static constexpr std::size_t inline_bytes = 4096 - 128;
  /// Returns the tag of messages that are part of a collective.
  [[nodiscard]] int tag() const noexcept { return tag_; }

  /// Sends a user's message: a header, and the data with it if it is small; otherwise as a second MPI message, whose
  /// tag depends on the header. Of data that differ from what a started receive expects, one in `data_tags` matches
  /// that receive, past whose end MPI may write.
  void send_message(const Call<Host>& c, Span<const AnyElement> data, std::uint64_t lengths, int to) {
    const int tag = header_tag(c.tag);
    user_tag_ = c.tag;
    const MessageHeader header = MessageHeader::of(data, lengths);
    const int data_tag = this->data_tag(c.tag, header);
    const bool small = data.size_bytes() <= inline_bytes;
    const std::size_t bytes = sizeof header + (small ? data.size_bytes() : 0);
    if (outgoing_.size() == 0) outgoing_ = Buffer<std::byte>(sizeof header + inline_bytes);
    std::memcpy(outgoing_.data(), &header, sizeof header);
    if (small && !data.empty()) std::memcpy(outgoing_.data() + sizeof header, data.data(), data.size_bytes());
    send(c, {outgoing_.data(), bytes, ElementType::bytes, 1}, to, tag);
    if (!small) send(c, data, to, data_tag);
  }
  /// Receives such a message.
  void receive_message(const Call<Host>& c, Span<AnyElement> target, std::uint64_t lengths, int from) {
    const int tag = header_tag(c.tag);
    user_tag_ = c.tag;
    if (arriving_.size() == 0) arriving_ = Buffer<std::byte>(sizeof(MessageHeader) + inline_bytes);
    const MessageHeader expected = MessageHeader::of(target, lengths);
    incoming_ = {expected, target, from, tag, data_tag(c.tag, expected), requests_.size(), false};
    MPI_Request& request = add({.receives = true, .is_header = true, .peer = from});
    check(MPI_Irecv(arriving_.data(), static_cast<int>(arriving_.size()), MPI_BYTE, (*messages_)[from], tag,
                    messages_->comm, &request),
          "MPI_Irecv", c);
    // At once, so that the data of messages with one tag match in their order.
    if (started_ && target.size_bytes() > inline_bytes) receive_data(self.context(c));
  }
  /// Returns whether a message is received whose header has not arrived.
  [[nodiscard]] bool awaits_header() const noexcept { return incoming_ && !incoming_->header_taken; }
  /// Returns the rank and the tag of the message that is received. Messages for which they are equal arrive in order.
  [[nodiscard]] std::pair<int, int> origin() const noexcept {
    return incoming_ ? std::pair{incoming_->from, incoming_->header_tag} : std::pair{-1, -1};
  }
  /// Takes the header if it has arrived; returns whether it has. @pre awaits_header()
  bool look_for_header(const ErrorContext& context) {
    const bool arrived = try_complete(requests_[incoming_->request], "MPI_Test", context);
    if (arrived) take_header(context);
    return arrived;
  }
  /// Returns whether the last call received data that MPI has perhaps read from the sender's memory after its call.
  [[nodiscard]] bool received_data() const noexcept { return received_data_; }

  /// Prepares a reduction of `send` into `receive`, which is empty if this rank receives no result.
  [[nodiscard]] Operands reduction(const calls::AnyOp& op, Span<const AnyElement> send, Span<AnyElement> receive) {
    Operands o;
    const bool wide = is_narrow_float(send.type());
    if (wide) {
      float* const sums = floats(send.size());
      detail::widen(send, sums);
      const bool receives = receive.data() != nullptr;
      o = {receives ? MPI_IN_PLACE : sums, receives ? sums : nullptr, MPI_FLOAT, MPI_OP_NULL, sizeof(float)};
    } else {
      o = {send.data() == receive.data() ? MPI_IN_PLACE : send.data(), receive.data(), datatype_of(send.type()),
           MPI_OP_NULL, send.element_bytes()};
    }
    reduce_by(op, wide, o);
    if (o.receive != nullptr) finish_with(op, wide, o.receive, receive);
    return o;
  }
  /// Prepares the op and the datatype that carries it.
  void reduce_by(const calls::AnyOp& op, bool wide, Operands& o) {
    if (is_native(op.kind(), op.type())) {
      o.op = op_of(op.kind());
      return;
    }
    user_.op = wide ? op.widened() : op;
    auto& type = user_types_[static_cast<std::size_t>(user_.op.type())];
    if (!type) type = carrying(o.type, user_);
    o.type = type.native_handle();
    o.op = world_.user_op(op.commutative());
  }
  /// Schedules the local work at the end: the op's `finish` on `result`, and the copy to `target`.
  void finish_with(const calls::AnyOp& op, bool wide, void* result, Span<AnyElement> target) {
    if (!op.finishes() && result == target.data()) return;
    finish_.emplace(Finish{wide ? op.widened() : op, result, target});
  }
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return scratch_.data();
  }
  [[nodiscard]] float* floats(std::size_t count) { return reinterpret_cast<float*>(scratch(count * sizeof(float))); }

  /// Returns whether MPI still uses this object, whose memory must then never be freed.
  [[nodiscard]] bool left_behind() const noexcept { return left_behind_; }
  [[nodiscard]] bool idle() const noexcept { return requests_.empty(); }

  /// Returns whether all requests are complete and the sizes of the received messages have been checked.
  bool test(const ErrorContext& context) {
    if (requests_.empty()) return true;
    if (awaits_header() && !look_for_header(context)) return false;
    if (unmatched_ > 0) match_arrived(context);
    if (unmatched_ > 0) return false;
    int flag = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, statuses_.data());
    completed(code, flag != 0, context);
    return flag != 0;
  }

  /// Returns the message of a timeout of this call: of a user's message, it names the ranks that are awaited.
  [[nodiscard]] std::string overdue(const Timeout& deadline) const {
    std::string ranks;
    for (std::size_t i = 0; i < requests_.size() && user_tag_; ++i) {
      const Awaited& awaited = awaited_[i];
      if (awaited.matched && is_complete(requests_[i])) continue;
      const bool begun = awaited.receives && !awaited.is_header && incoming_ && incoming_->header_taken;
      const char* const what = !awaited.receives ? " did not receive"
                               : begun           ? " did not send all of"
                                                 : " did not send";
      const std::string text =
          "rank " + std::to_string(awaited.peer) + what + " a message with tag " + std::to_string(*user_tag_);
      // The header and the data of a message are one message for the user.
      if (ranks.find(text) == std::string::npos) ranks += (ranks.empty() ? "" : " and ") + text;
    }
    return "timed out after " + deadline.to_string() + ": " +
           (ranks.empty() ? "not all ranks joined and continued the call" : ranks);
  }

  /// Does the local work after the communication.
  void finish() {
    if (user_.error != nullptr || finish_) [[unlikely]]
      end_reduction();
  }

  /// Gives up the requests in flight: cancels receives and lets the rest complete for some time, so MPI does not read
  /// memory that its owner frees; MPI keeps the requests that do not complete. A receive that has begun cannot be
  /// cancelled, and is waited for. Messages from and to a rank that `is_lost` are not.
  template <class IsLost>
  void abandon(std::chrono::milliseconds patience, IsLost&& is_lost) noexcept {
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
    const auto unreachable = [&](const Awaited& awaited) { return awaited.peer >= 0 && is_lost(awaited.peer); };
    (void)wait_until(
        no_timeout, [&] { return all(sends); },
        [&] { return all([&](const Awaited& awaited) { return sends(awaited) || unreachable(awaited); }); });
    const auto end = wait_until(
        patience, [&] { return all([](const Awaited&) { return false; }); }, [&] { return all(unreachable); });
    if (end != detail::WaitEnd::ready) left_behind_ = true;
    clear();
    finish_.reset();
    user_.error = nullptr;
  }

  static constexpr std::chrono::milliseconds least_patience{100};

  const calls::RankOf self;
  const std::size_t most;           ///< the maximum number of units in one call of MPI
  std::vector<int> counts, places;  ///< arguments of a call

 private:
  void end_reduction() {
    if (user_.error != nullptr) std::rethrow_exception(std::exchange(user_.error, nullptr));
    if (!finish_) return;
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

  /// The message of a request, and what is expected of a received one; `matched` once MPI has matched it.
  struct Awaited {
    bool receives = false;
    bool matched = true;
    bool is_header = false;
    int peer = -1;  ///< the other rank of a message
    int tag = 0;
    void* data = nullptr;
    int units = 0;
    Unit unit{};
  };
  /// A user's message that is received.
  struct Incoming {
    MessageHeader expected{};
    Span<AnyElement> target{};
    int from = 0;
    int header_tag = 0;
    int data_tag = 0;
    std::size_t request = 0;  ///< of the header
    bool header_taken = false;
  };
  struct Finish {
    calls::AnyOp op;
    void* result;
    Span<AnyElement> target;
  };

  [[nodiscard]] int header_tag(int tag) const noexcept { return tag_ + (1 + data_tags_) * tag; }
  [[nodiscard]] int data_tag(int tag, const MessageHeader& header) const noexcept {
    return header_tag(tag) + 1 + static_cast<int>(digest_of(header) % static_cast<std::uint64_t>(data_tags_));
  }
  /// Compares the header that has arrived, and takes the data if they are with it.
  void take_header(const ErrorContext& context) {
    MessageHeader theirs;
    std::memcpy(&theirs, arriving_.data(), sizeof theirs);
    if (theirs != incoming_->expected)
      throw MismatchError(difference(incoming_->expected, theirs, incoming_->from, false), context);
    incoming_->header_taken = true;
    const Span<AnyElement>& target = incoming_->target;
    if (target.size_bytes() > inline_bytes) {
      if (!started_) receive_data(context);
    } else if (!target.empty()) {
      std::memcpy(target.data(), arriving_.data() + sizeof theirs, target.size_bytes());
    }
  }
  void receive_data(const ErrorContext& context) {
    received_data_ = true;
    receive(context, incoming_->target, incoming_->from, incoming_->data_tag);
  }
  MPI_Request& add(const Awaited& awaited) {
    awaited_.push_back(awaited);
    statuses_.emplace_back();
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }
  void clear() noexcept {
    requests_.clear();
    incoming_.reset();
    unmatched_ = 0;
    statuses_.clear();
    awaited_.clear();
  }

  void completed(int code, bool all, const ErrorContext& context) {
    if (code != MPI_SUCCESS) {
      for (const auto& status : statuses_)
        if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
          fail(status.MPI_ERROR, "MPI_Testall", context);
      fail(code, "MPI_Testall", context);
    }
    if (!all) return;
    for (std::size_t i = 0; i < awaited_.size(); ++i)
      if (awaited_[i].receives && !awaited_[i].is_header) compare(awaited_[i], statuses_[i], context);
    clear();
  }
  /// Receives what has arrived of the unmatched; the pieces of one rank arrive in their order.
  void match_arrived(const ErrorContext& context) {
    int late = -1;  // the last rank whose next piece has not arrived
    for (std::size_t i = 0; i < awaited_.size(); ++i) {
      Awaited& awaited = awaited_[i];
      if (awaited.matched || awaited.peer == late) continue;
      int flag = 0;
      MPI_Message arrived = MPI_MESSAGE_NULL;
      MPI_Status status;
      mpi::check(MPI_Improbe((*messages_)[awaited.peer], awaited.tag, messages_->comm, &flag, &arrived, &status),
                 "MPI_Improbe", context);
      late = awaited.peer;
      if (flag == 0) continue;
      compare(awaited, status, context);
      mpi::check(MPI_Imrecv(awaited.data, awaited.units, awaited.unit.type, &arrived, &requests_[i]), "MPI_Imrecv",
                 context);
      awaited.matched = true;
      --unmatched_;
      late = -1;
    }
  }
  static void compare(const Awaited& awaited, const MPI_Status& status, const ErrorContext& context) {
    int arrived = 0;
    mpi::check(MPI_Get_count(&status, awaited.unit.type, &arrived), "MPI_Get_count", context);
    if (arrived == awaited.units) return;
    const auto elements = [&](int units) {
      return std::to_string(static_cast<std::size_t>(units) / awaited.unit.per_element);
    };
    throw MismatchError("expects " + elements(awaited.units) + " elements, rank " + std::to_string(awaited.peer) +
                            " sends " + (arrived == MPI_UNDEFINED ? "no whole number of them" : elements(arrived)),
                        context);
  }

  const World& world_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  const RankMap* messages_ = nullptr;
  bool started_ = false;
  bool left_behind_ = false;
  int tag_ = 0;
  int data_tags_ = 1;
  std::optional<int> user_tag_{};  ///< of a user's message
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Awaited> awaited_;
  std::size_t unmatched_ = 0;
  std::optional<Incoming> incoming_{};
  Buffer<std::byte> outgoing_{}, arriving_{};  // headers and small data, empty before the first message
  bool received_data_ = false;
  std::optional<Finish> finish_;
  Buffer<std::byte> scratch_;
  UserOp user_;
  std::array<unique_datatype, distx::detail::element_type_count> user_types_;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi
