#include "testing/accelerator/known_results.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace remint::testing {
namespace {

std::mutex& mutex() {
  static auto* made = new std::mutex();
  return *made;
}

std::unordered_map<std::string, std::unique_ptr<KnownResults>>& all() {
  static auto* made = new std::unordered_map<std::string, std::unique_ptr<KnownResults>>();
  return *made;
}

template <typename T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void describe(std::string& key, const c10::IValue& value) {
  key += value.tagKind();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    key += tensor.defined() ? 't' : 'u';
    if (!tensor.defined()) return;
    append(key, tensor.scalar_type());
    append(key, tensor.device());
    append(key, tensor.is_conj());
    append(key, tensor.is_neg());
    append(key, tensor.dim());
    append(key, tensor.storage_offset());
    append(key, tensor.storage().nbytes());
    append(key, tensor.unsafeGetTensorImpl()->is_wrapped_number());
    for (std::int64_t size : tensor.sizes()) append(key, size);
    for (std::int64_t stride : tensor.strides()) append(key, stride);
  } else if (value.isList()) {
    append(key, value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) describe(key, element);
  } else if (value.isInt()) {
    append(key, value.toInt());
  } else if (value.isDouble()) {
    append(key, value.toDouble());
  } else if (value.isBool()) {
    append(key, value.toBool());
  } else if (value.isString()) {
    key += value.toStringRef();
  }
}

}  // namespace

std::string KnownResults::key_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  std::string key = op.schema().name() + "." + op.schema().overload_name();
  for (const c10::IValue& argument : arguments) describe(key, argument);
  append(key, static_cast<int>(c10::typeMetaToScalarType(c10::get_default_dtype())));
  return key;
}

const KnownResults* KnownResults::find(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex());
  const auto found = all().find(key);
  return found == all().end() ? nullptr : found->second.get();
}

void KnownResults::add(const std::string& key, KnownResults known) {
  const std::lock_guard<std::mutex> lock(mutex());
  all().emplace(key, std::make_unique<KnownResults>(std::move(known)));
}

at::Tensor look_of(const at::Tensor& tensor) {
  at::Tensor look = at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                             tensor.dtype(), tensor.device());
  c10::TensorImpl* impl = look.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) look._set_conj(true);
  if (tensor.is_neg()) look._set_neg(true);
  return look;
}

}  // namespace remint::testing
