// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"
#include "distx/dlpack/abi.hpp"

namespace distx::inline DISTX_ABI::dlpack {

namespace detail {

[[noreturn]] inline void refuse(const std::string& what, const char* operation = "from_dlpack") {
  throw InvalidArgument(what, {.operation = operation});
}

inline std::string text_of(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "(" + text + ")";
}

/// DLPack's codes, in the order of ElementType.
inline constexpr std::uint8_t codes[] = {0, 1, 0, 1, 0, 1, 0, 1, 10, 12, 4, 2, 2, 2};

inline DLDataType data_type_of(ElementType type) {
  return {codes[static_cast<std::size_t>(type)], static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

inline ElementType element_type_of(DLDataType type) {
  if (type == DLDataType{6, 8, 1}) return ElementType::u8;  // bool
  for (std::size_t i = 0; i < std::size(codes); ++i)
    if (const auto ours = static_cast<ElementType>(i); type == data_type_of(ours)) return ours;
  constexpr const char* names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool", "another"};
  refuse("distx has no elements of DLPack's type code " + std::to_string(type.code) + " (" +
         names[std::min<int>(type.code, 7)] + "), " + std::to_string(type.bits) + " bits and " +
         std::to_string(type.lanes) + " lanes; convert the tensor");
}

/// Returns the number of elements, then the stride of each dimension, of a row-major tensor without gaps.
inline std::vector<std::int64_t> compact(std::span<const std::int64_t> shape, std::size_t bytes,
                                         const char* operation) {
  std::vector<std::int64_t> counts(shape.size() + 1, 1);
  const std::int64_t most = PTRDIFF_MAX / static_cast<std::int64_t>(bytes);
  for (std::size_t d = shape.size(); d-- > 0; counts[d] = counts[d + 1] * shape[d])
    if (shape[d] < 0 || (shape[d] > 0 && counts[d + 1] > most / shape[d]))
      refuse("invalid shape " + text_of(shape) + ": an extent is negative, or the size overflows", operation);
  return counts;
}

/// Returns the elements of a tensor, after everything that distx relies on is checked.
inline Span<AnyElement> elements_of(const DLTensor& tensor) {
  const ElementType type = element_type_of(tensor.dtype);
  const std::size_t bytes = size_of(type);
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr))
    refuse("invalid shape: it is at address 0, or ndim " + std::to_string(tensor.ndim) + " is negative");
  const std::span<const std::int64_t> shape(tensor.shape, static_cast<std::size_t>(tensor.ndim));
  const auto counts = compact(shape, bytes, "from_dlpack");
  if (counts[0] == 0) return {nullptr, 0, type, bytes};
  for (std::size_t d = 0; d < shape.size() && tensor.strides != nullptr; ++d)
    if (shape[d] != 1 && tensor.strides[d] != counts[d + 1])
      refuse("the tensor of shape " + text_of(shape) + " has strides " + text_of({tensor.strides, shape.size()}) +
             " instead of " + text_of(std::span(counts).subspan(1)) + "; pass a contiguous copy");
  if (tensor.data == nullptr || (reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset) % bytes != 0)
    refuse("the tensor's address is 0 or not a multiple of an element's " + std::to_string(bytes) +
           " bytes; pass an aligned copy");
  return {static_cast<std::byte*>(tensor.data) + tensor.byte_offset, static_cast<std::size_t>(counts[0]), type, bytes};
}

/// Calls the deleter, which may be null.
struct Release {
  void operator()(auto* managed) const noexcept {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};

/// A memory space whose tensors DLPack can describe: the host's, CUDA's.
template <class Space>
concept Described = HostAccessible<Space> || Space::name == "cuda";

}  // namespace detail

/// A tensor of another library in the memory that it has there. Copies share it; the last one frees it.
///
/// That calls the library's deleter, on the thread that destroys the last copy or `owner()`.
template <class T, detail::Described Space>
class Imported {
 public:
  Imported() = default;
  Imported(std::shared_ptr<const void> owner, Span<T, Space> span, std::vector<std::size_t> shape, int device)
      : owner_(std::move(owner)), span_(span), shape_(std::move(shape)), device_(device) {}
  /// Returns the elements, row-major. They are valid as long as a copy of this object or of `owner()` exists.
  [[nodiscard]] Span<T, Space> span() const& noexcept { return owner_ ? span_ : Span<T, Space>(); }
  void span() const&& = delete;
  /// Returns the extents; none for a scalar.
  [[nodiscard]] const std::vector<std::size_t>& shape() const noexcept { return shape_; }
  /// Returns the number of the GPU; 0 for host memory.
  [[nodiscard]] int device() const noexcept { return device_; }
  /// Returns an owner of the memory, as `to_dlpack` and `distx_torch::tensor_over` take it.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

 private:
  std::shared_ptr<const void> owner_;
  Span<T, Space> span_;
  std::vector<std::size_t> shape_;
  int device_ = 0;
};

/// Takes ownership of a tensor of another library, without a copy: `from_dlpack<float>(managed)`.
///
/// Takes it in any case: if this function throws, the deleter has been called. In Python, ask for it by
/// `__dlpack__(max_version=(1, 0))`, and rename the PyCapsule before. Work on CUDA memory is ordered by the caller:
/// `__dlpack__(stream=…)` makes that stream wait.
/// @tparam T      the element type, const for tensors that may be read-only; by default any type. bool is std::uint8_t
/// @tparam Space  the memory that it must be in: the host's, pinned or not, or `Cuda`
/// @throws InvalidArgument for another element type or device, strides with gaps or in another order, read-only memory
///   if T is not const, another major version of DLPack, an invalid shape, or an address that is 0 or not aligned
template <class T = AnyElement, detail::Described Space = Host, ManagedTensor M>
[[nodiscard]] Imported<T, Space> from_dlpack(M* managed) {
  if (managed == nullptr) detail::refuse("the managed tensor is null");
  std::shared_ptr<const void> owner(managed, detail::Release());
  if constexpr (VersionedTensor<M>) {
    if (managed->version.major != DLPackVersion().major)
      detail::refuse("the tensor has version " + std::to_string(managed->version.major) +
                     " of DLPack; ask for version 1");
    if ((managed->flags & 1) != 0 && !std::is_const_v<T>)
      detail::refuse("the tensor is read-only; name a const element type");
  }
  const auto tensor = std::bit_cast<DLTensor>(managed->dl_tensor);
  const auto [type, device] = tensor.device;
  if (const bool host = HostAccessible<Space>; host ? type != 1 && type != 3 : type != 2)
    detail::refuse("the tensor is in memory of DLPack's device type " + std::to_string(type) + ", not of the space '" +
                   std::string(Space::name) + "'; copy it there");
  const Span<AnyElement> any = detail::elements_of(tensor);
  Span<T, Space> span;
  if constexpr (std::same_as<std::remove_const_t<T>, AnyElement>) {
    span = {any.data(), any.size(), any.type(), any.element_bytes()};
  } else {
    static_assert(Element<T>, "distx: from_dlpack: T is an element type of distx or AnyElement");
    if (any.type() != element_type<T>)
      detail::refuse("the tensor has elements of " + std::string(name_of(any.type())) + ", not of " +
                     std::string(name_of(element_type<T>)));
    span = {static_cast<T*>(any.data()), any.size()};
  }
  return {std::move(owner), span, {tensor.shape, tensor.shape + tensor.ndim}, device};
}

/// Returns memory of distx as a tensor for another library, read-only if the elements are const, without a copy.
///
/// Pass `release()` of the result to a consumer, which calls its deleter: `PyCapsule_New(…, "dltensor_versioned", …)`.
/// @tparam M      DLManagedTensor for consumers before version 1, which cannot mark memory as read-only
/// @param shape   the extents, row-major
/// @param owner   is kept until the deleter is called, on any thread; without one, the memory must outlive the consumer
/// @param device  the number of the GPU, which CUDA memory needs
/// @throws InvalidArgument if the numbers of elements of shape and span differ, for elements of type `bytes`, and for
///   CUDA memory without a device
template <ManagedTensor M = DLManagedTensorVersioned, class T, detail::Described Space>
[[nodiscard]] auto to_dlpack(Span<T, Space> elements, std::span<const std::size_t> shape,
                             std::shared_ptr<const void> owner, int device = HostAccessible<Space> ? 0 : -1) {
  static_assert(VersionedTensor<M> || !std::is_const_v<T>, "distx: to_dlpack: DLManagedTensor cannot be read-only");
  struct Exported {
    M managed{};
    std::shared_ptr<const void> owner;
    std::vector<std::int64_t> shape, counts;
  };
  const Span<const AnyElement, Space> any = elements;
  if (any.type() == ElementType::bytes) detail::refuse("DLPack has no elements of type bytes", "to_dlpack");
  if (device < 0) detail::refuse("pass the number of the GPU whose memory it is", "to_dlpack");
  auto made = std::make_unique<Exported>();
  made->shape.assign(shape.begin(), shape.end());
  made->counts = detail::compact(made->shape, any.element_bytes(), "to_dlpack");
  if (static_cast<std::size_t>(made->counts[0]) != any.size())
    detail::refuse("a tensor of shape " + detail::text_of(made->shape) + " has " + std::to_string(made->counts[0]) +
                       " elements, but the span has " + std::to_string(any.size()),
                   "to_dlpack");
  made->owner = std::move(owner);
  DLTensor tensor{any.empty() ? nullptr : const_cast<void*>(any.data()), {HostAccessible<Space> ? 1 : 2, device}};
  tensor.ndim = static_cast<std::int32_t>(shape.size());
  tensor.dtype = detail::data_type_of(any.type());
  tensor.shape = made->shape.data();
  tensor.strides = made->counts.data() + 1;
  M& managed = made->managed;
  if constexpr (VersionedTensor<M>) {
    managed.version = {DLPackVersion().major, DLPackVersion().minor};
    managed.flags = std::is_const_v<T> ? 1 : 0;
  }
  managed.dl_tensor = std::bit_cast<decltype(managed.dl_tensor)>(tensor);
  managed.manager_ctx = made.get();
  managed.deleter = [](M* self) { delete static_cast<Exported*>(self->manager_ctx); };
  return std::unique_ptr<M, detail::Release>(&made.release()->managed);
}

}  // namespace distx::inline DISTX_ABI::dlpack
