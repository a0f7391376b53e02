// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/types.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"

namespace distx_torch::inline DISTX_ABI {

namespace detail {

/// The element types that both have: LibTorch's, distx's.
inline constexpr std::pair<at::ScalarType, distx::ElementType> element_types[] = {
    {at::kFloat, distx::ElementType::f32},
    {at::kDouble, distx::ElementType::f64},
    {at::kBFloat16, distx::ElementType::bf16},
    {at::kHalf, distx::ElementType::f16},
    {at::kFloat8_e4m3fn, distx::ElementType::f8e4m3},
    {at::kFloat8_e5m2, distx::ElementType::f8e5m2},
    {at::kLong, distx::ElementType::i64},
    {at::kInt, distx::ElementType::i32},
    {at::kShort, distx::ElementType::i16},
    {at::kChar, distx::ElementType::i8},
    {at::kByte, distx::ElementType::u8},
    {at::kBool, distx::ElementType::u8},
    {at::kUInt16, distx::ElementType::u16},
    {at::kUInt32, distx::ElementType::u32},
    {at::kUInt64, distx::ElementType::u64},
};

[[noreturn]] inline void refuse_tensor(const std::string& what, const char* operation) {
  throw distx::InvalidArgument(what, {.operation = operation});
}

/// Where LibTorch has the tensors of a memory space, and the stream on which this thread uses them. That of GPUs is in
/// <distx/torch_cuda.hpp>.
template <class Space>
struct Place {
  static_assert(std::same_as<Space, distx::Host>, "distx_torch: include <distx/torch_cuda.hpp> for tensors on GPUs");
  [[nodiscard]] static at::Device device() { return at::kCPU; }
  [[nodiscard]] static distx::HostStream stream() { return {}; }
};

/// Puts a tensor's storage over other memory.
template <class Storage = c10::StorageImpl>
void give(const at::Tensor& tensor, at::DataPtr memory) {
  Storage& storage = *tensor.storage().unsafeGetStorageImpl();
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(std::move(memory));
}
/// Frees the memory of a tensor's storage. An access to its values then throws c10::Error; LibTorch 2.11 cannot clear
/// that error, so there it reads address 0.
template <class Storage = c10::StorageImpl>
void withhold(const at::Tensor& tensor, const std::string& message) {
  Storage& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap({nullptr, tensor.device()});
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_("distx: " + message);
}

}  // namespace detail

/// Returns distx's name of an element type; bool is u8.
/// @throws distx::InvalidArgument for a type that distx does not have, such as a complex one
[[nodiscard]] inline distx::ElementType element_type_of(at::ScalarType type) {
  for (const auto& [torch, ours] : detail::element_types)
    if (torch == type) return ours;
  detail::refuse_tensor("distx has no element type " + std::string(c10::toString(type)) + "; convert the tensor",
                        "element_type_of");
}

/// Returns LibTorch's name of an element type.
/// @throws distx::InvalidArgument for `bytes`
[[nodiscard]] inline at::ScalarType scalar_type_of(distx::ElementType type) {
  for (const auto& [torch, ours] : detail::element_types)
    if (ours == type) return torch;
  detail::refuse_tensor("elements of type bytes are none of LibTorch's", "scalar_type_of");
}

/// Returns the elements of a tensor in its own memory, row-major: every collective takes them.
///
/// They are valid while the tensor's storage is. A strided or sparse tensor has no such span: `contiguous()` copies it.
/// @tparam Space  where the tensor is: distx::Host or distx::Cuda
/// @throws distx::InvalidArgument unless the tensor is contiguous and in `Space`
template <distx::MemorySpace Space = distx::Host>
[[nodiscard]] distx::Span<distx::AnyElement, Space> span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) detail::refuse_tensor("the tensor is not defined", "span_of");
  if (tensor.device().type() != detail::Place<Space>::device().type() || tensor.layout() != at::kStrided)
    detail::refuse_tensor("the tensor is " + tensor.toString() + " on " + tensor.device().str() +
                              "; pass a dense one in the memory space '" + std::string(Space::name) + "'",
                          "span_of");
  if (!tensor.is_contiguous())
    detail::refuse_tensor(
        "the tensor is not contiguous: its strides leave gaps or another order; pass "
        "tensor.contiguous()",
        "span_of");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), element_type_of(tensor.scalar_type()),
          static_cast<std::size_t>(tensor.element_size())};
}

/// Returns the elements of a tensor as T.
/// @throws distx::InvalidArgument as above, and for another element type
template <class T, distx::MemorySpace Space = distx::Host>
  requires(!distx::MemorySpace<T>)
[[nodiscard]] distx::Span<T, Space> span_of(const at::Tensor& tensor) {
  const auto span = span_of<Space>(tensor);
  if (span.type() != distx::element_type<T>)
    detail::refuse_tensor("the tensor has elements of " + std::string(c10::toString(tensor.scalar_type())) +
                              ", not of " + std::string(name_of(distx::element_type<T>)),
                          "span_of");
  return {static_cast<T*>(span.data()), span.size()};
}

/// Returns a tensor over memory of distx, without a copy.
///
/// @param shape  row-major; {size} without it
/// @param owner  is kept alive as long as the tensor's storage; without one, the memory must outlive the tensor
/// @throws distx::InvalidArgument if the numbers of elements of shape and span differ
template <class T, distx::MemorySpace Space>
[[nodiscard]] at::Tensor tensor_over(distx::Span<T, Space> values, std::optional<at::IntArrayRef> shape = std::nullopt,
                                     std::shared_ptr<const void> owner = nullptr) {
  const distx::Span<distx::AnyElement, Space> elements(values);
  const std::int64_t flat[] = {static_cast<std::int64_t>(elements.size())};
  const at::IntArrayRef extents = shape.value_or(at::IntArrayRef(flat));
  if (c10::multiply_integers(extents) != flat[0])
    detail::refuse_tensor("a tensor of the given shape has " + std::to_string(c10::multiply_integers(extents)) +
                              " elements, but the span has " + std::to_string(flat[0]),
                          "tensor_over");
  return torch::from_blob(
      elements.data(), extents, [owner = std::move(owner)](void*) {},
      at::TensorOptions().dtype(scalar_type_of(elements.type())).device(detail::Place<Space>::device()));
}

}  // namespace distx_torch::inline DISTX_ABI
